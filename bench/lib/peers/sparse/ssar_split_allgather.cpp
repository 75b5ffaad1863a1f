// SparCML's SSAR by split and allgather: each rank merges the pairs of its range, and all gather
// the merged ranges, always as pairs.

#include "bench/lib/peers/sparse/algorithm.hpp"
#include "bench/lib/peers/sparse/split_stage.hpp"

namespace sparse {
namespace {

class SplitAllgather : public Algorithm {
 public:
  using Algorithm::Algorithm;

  Stream sum(const Input& own) override {
    Split split(network(), own.pairs, even_ranges(job_.elements, network().ranks()));
    const Pairs merged = merge_all(split.exchange());
    std::vector<std::size_t> counts;
    return {false, gather_pairs(network(), merged, counts), {}};
  }

  // k (P-1)/P pairs in the split, and P-1 merged ranges of at most k pairs: k (P-1)/P + k (P-1).
  double bound_bytes() const override {
    return k_bytes() * (ranks() - 1) / ranks() + k_bytes() * (ranks() - 1);
  }
};

}  // namespace

std::unique_ptr<Algorithm> make_ssar_split_allgather(const Job& job) {
  return std::make_unique<SplitAllgather>(job);
}

}  // namespace sparse
