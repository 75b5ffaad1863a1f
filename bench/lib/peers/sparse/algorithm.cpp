#include "bench/lib/peers/sparse/algorithm.hpp"

#include <functional>
#include <utility>

namespace sparse {
namespace {

using Maker = std::function<std::unique_ptr<Algorithm>(const Job&)>;

template <class Make>
Maker with_bits(Make make, int bits) {
  return [=](const Job& job) { return make(job, bits); };
}

const std::vector<std::pair<std::string, Maker>>& makers() {
  static const std::vector<std::pair<std::string, Maker>> all = {
      {"ssar-recursive-doubling", make_ssar_recursive_doubling},
      {"ssar-split-allgather", make_ssar_split_allgather},
      {"dsar-split-allgather", with_bits(make_dsar_split_allgather, 32)},
      {"dsar-qsgd8", with_bits(make_dsar_split_allgather, 8)},
      {"dsar-qsgd4", with_bits(make_dsar_split_allgather, 4)},
      {"dsar-qsgd2", with_bits(make_dsar_split_allgather, 2)},
      {"allgather-pairs", make_allgather_pairs},
      {"allgather-qsgd8", with_bits(make_allgather_qsgd, 8)},
      {"allgather-qsgd4", with_bits(make_allgather_qsgd, 4)},
      {"allgather-qsgd2", with_bits(make_allgather_qsgd, 2)},
      {"ok-topk", make_ok_topk},
      {"ok-topk-from-dense", make_ok_topk_from_dense},
  };
  return all;
}

}  // namespace

std::unique_ptr<Algorithm> make_algorithm(const std::string& name, const Job& job) {
  for (const auto& [known, make] : makers())
    if (known == name) return make(job);
  return nullptr;
}

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : makers()) names.push_back(name);
  return names;
}

}  // namespace sparse
