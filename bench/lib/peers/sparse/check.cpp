#include "bench/lib/peers/sparse/check.hpp"

#include <cmath>
#include <sstream>

namespace sparse {
namespace {

template <class... Parts>
void add(Verdict& verdict, Parts... parts) {
  if (verdict.wrong++ > 0) return;
  std::ostringstream said;
  (said << ... << parts);
  verdict.first = said.str();
}

}  // namespace

Verdict check(const Stream& sum, const Dense& exact, const Dense& allowed) {
  Verdict verdict;
  Dense values = sum.is_dense ? sum.values : zeros(exact.size());
  if (values.size() != exact.size()) {
    add(verdict, "there are ", values.size(), " elements, expected ", exact.size());
    return verdict;
  }
  for (std::size_t i = 0; i < sum.pairs.size(); ++i) {
    const Pair pair = sum.pairs[i];
    if (pair.index >= exact.size() || (i > 0 && sum.pairs[i - 1].index >= pair.index)) {
      add(verdict, "pair ", i, " has the index ", pair.index,
          ", expected a larger one than before");
      continue;
    }
    values[pair.index] = pair.value;
  }
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const float most = allowed.empty() ? 0 : allowed[i];
    if (!(std::fabs(values[i] - exact[i]) <= most))  // also not a number
      add(verdict, "element ", i, " is ", values[i], ", expected ", exact[i], " +- ", most);
  }
  return verdict;
}

Verdict check_delivered(std::size_t delivered, std::size_t k) {
  Verdict verdict;
  if (2 * delivered < k || delivered > 2 * k)
    add(verdict, delivered, " pairs were delivered, expected about k = ", k);
  return verdict;
}

}  // namespace sparse
