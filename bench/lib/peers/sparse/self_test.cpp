#include "bench/lib/peers/sparse/self_test.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "bench/lib/peers/sparse/check.hpp"
#include "bench/lib/peers/sparse/input.hpp"
#include "bench/lib/peers/sparse/ok_topk.hpp"
#include "bench/lib/peers/sparse/qsgd.hpp"
#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {
namespace {

bool all_hold = true;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "sparse: self-test: %s does not hold\n", what);
  all_hold = false;
}

Stream of(Pairs pairs) {
  return {false, std::move(pairs), {}};
}

void checker_finds_what_is_wrong() {
  const Dense exact = {0, 2, 0, -5};
  require(check(of({{1, 2}, {3, -5}}), exact, {}).wrong == 0, "a right sum is right");
  require(check({true, {}, exact}, exact, {}).wrong == 0, "a right dense sum is right");
  require(check(of({{1, 2}, {3, -4}}), exact, {}).wrong == 1, "a wrong value is found");
  require(check(of({{1, 2}}), exact, {}).wrong == 1, "a missing pair is found");
  require(check(of({{0, 1}, {1, 2}, {3, -5}}), exact, {}).wrong == 1, "a needless pair is found");
  require(check(of({{3, -5}, {1, 2}}), exact, {}).wrong > 0, "a wrong order is found");
  require(check(of({{1, 2}, {1, 2}, {3, -5}}), exact, {}).wrong == 1, "an index twice is found");
  require(check(of({{1, 2}, {3, -5}, {4, 1}}), exact, {}).wrong == 1, "a large index is found");
  require(check({true, {}, {0, 2, 0}}, exact, {}).wrong == 1, "a short sum is found");
  require(check({true, {}, {0, NAN, 0, -5}}, exact, {}).wrong == 1, "not a number is found");
  const Dense allowed = {1, 1, 1, 1};
  require(check({true, {}, {1, 1, -1, -5}}, exact, allowed).wrong == 0, "errors may be allowed");
  require(check({true, {}, {1, 0, -1, -5}}, exact, allowed).wrong == 1, "larger ones may not");
  require(check_delivered(10, 10).wrong == 0 && check_delivered(4, 10).wrong == 1 &&
              check_delivered(21, 10).wrong == 1,
          "the number of delivered pairs is near k");
}

void merges_add() {
  constexpr std::uint32_t kElements = 1000;
  std::vector<Pairs> owned;
  std::vector<Run> runs;
  Dense exact = zeros(kElements);
  for (int count = 1; count <= 9; ++count) {
    const std::size_t pairs = 100 * std::size_t(count % 3);  // also none
    owned.push_back(pairs > 0 ? pairs_of(count, kElements, pairs, Keys::kZipf, 1) : Pairs());
    add_pairs(owned.back(), 0, exact);
    runs.assign(owned.begin(), owned.end());
    require(check(of(merge_all(runs)), exact, {}).wrong == 0, "merged runs are their sum");
    require(check(sum_of_runs(runs, kElements), exact, {}).wrong == 0, "dense above delta");
  }
}

void draws_are_distinct() {
  for (const Keys keys : {Keys::kRandom, Keys::kZipf})
    for (const std::size_t count : {std::size_t{1}, std::size_t{500}, std::size_t{1000}}) {
      const Pairs pairs = pairs_of(0, 1000, count, keys, 7);
      Dense exact = zeros(1000);
      add_pairs(pairs, 0, exact);
      require(pairs.size() == count && check(of(pairs), exact, {}).wrong == 0,
              "keys are sorted, distinct, and as many as asked for");
    }
}

/// Every error is at most one level, and their mean is zero within six standard deviations.
void qsgd_is_unbiased(int bits) {
  constexpr std::uint32_t kCount = 100'003;  // the last bucket and the last byte are not full
  Dense values = zeros(kCount);
  add_pairs(pairs_of(0, kCount, kCount / 2, Keys::kRandom, 3), 0, values);
  Dense decoded(kCount);
  qsgd::decode(qsgd::encode(values, bits, 5), bits, decoded);
  const Dense bounds = qsgd::error_bounds(values, bits);
  require(check({true, {}, decoded}, values, bounds).wrong == 0, "errors of QSGD have a bound");
  double levels = 0;
  for (std::size_t i = 0; i < kCount; ++i) levels += (decoded[i] - values[i]) / bounds[i];
  require(std::fabs(levels) < 6 * 0.5 * std::sqrt(double(kCount)), "QSGD is unbiased");
  Dense twice = decoded;
  qsgd::decode_and_add(qsgd::encode(values, bits, 5), bits, twice);
  for (float& value : decoded) value *= 2;
  require(check({true, {}, twice}, decoded, {}).wrong == 0, "decoded values can be added");
}

void top_k_is_parted() {
  const Pairs pairs = {{1, 3}, {2, -7}, {5, 1}, {9, 7}};
  Dense magnitudes = {3, 7, 1, 7};
  require(kth_largest(magnitudes, 2) == 7 && kth_largest(magnitudes, 3) == 3 &&
              kth_largest(magnitudes, 5) == 0,
          "the k-th largest magnitude");
  const Parted large = part_by_threshold(pairs, 3);
  require(large.chosen.size() == 3 && large.rest.size() == 1 && large.rest[0].index == 5,
          "pairs are parted by a threshold");
  const Parted common = part_by_indices(pairs, Pairs{{0, 1}, {2, 1}, {9, 1}, {10, 1}});
  require(common.chosen.size() == 2 && common.chosen[1].index == 9 && common.rest.size() == 2,
          "pairs are parted by indices");
}

}  // namespace

bool self_test() {
  checker_finds_what_is_wrong();
  merges_add();
  draws_are_distinct();
  for (const int bits : {2, 4, 8}) qsgd_is_unbiased(bits);
  top_k_is_parted();
  return all_hold;
}

}  // namespace sparse
