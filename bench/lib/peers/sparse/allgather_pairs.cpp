// AllGather-sparse, what frameworks do: counts are gathered, then all ranks' pairs, and each rank
// adds them all up. MPI takes parts of different sizes, so nothing is padded.

#include "bench/lib/peers/sparse/algorithm.hpp"
#include "bench/lib/peers/sparse/split_stage.hpp"

namespace sparse {
namespace {

class AllgatherPairs : public Algorithm {
 public:
  using Algorithm::Algorithm;

  Stream sum(const Input& own) override {
    std::vector<std::size_t> counts;
    const Pairs all = gather_pairs(network(), own.pairs, counts);
    std::vector<Run> runs;
    std::size_t at = 0;
    for (const std::size_t count : counts) {
      runs.push_back(Run(all).subspan(at, count));
      at += count;
    }
    return sum_of_runs(runs, job_.elements);
  }

  // (P-1) k pairs.
  double bound_bytes() const override { return (ranks() - 1) * k_bytes(); }
};

}  // namespace

std::unique_ptr<Algorithm> make_allgather_pairs(const Job& job) {
  return std::make_unique<AllgatherPairs>(job);
}

}  // namespace sparse
