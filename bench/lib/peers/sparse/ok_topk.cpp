// Ok-Topk (Li and Hoefler, PPoPP'22). Where the paper leaves something open:
// - Residuals grow in the first steps, so all thresholds are exact in these. After that they are
//   re-used for tau' steps.
// - For the exact global threshold an owner sends its k largest merged values: no others can be
//   among the k largest.
// - Pairs are moved between owners without a change of their order, so the sum is sorted.
#include "bench/lib/peers/sparse/ok_topk.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bench/lib/peers/sparse/algorithm.hpp"
#include "bench/lib/peers/sparse/split_stage.hpp"

namespace sparse {
namespace {

constexpr int kSettlingSteps = 8;
constexpr int kBucket = 4;              // destinations that are served at the same time
constexpr std::size_t kUnbalanced = 4;  // times the mean: above that, pairs are moved

Dense magnitudes_of(Run pairs) {
  Dense magnitudes;
  magnitudes.reserve(pairs.size());
  for (const Pair pair : pairs) magnitudes.push_back(std::fabs(pair.value));
  return magnitudes;
}

class OkTopk : public Algorithm {
 public:
  using Algorithm::Algorithm;

  Stream sum(const Input& own) override {
    const Pairs selected = select(own);
    const Pairs merged = split_and_reduce(selected);
    if (is_exact()) global_threshold_ = exact_global_threshold(merged);
    Pairs delivered = balance_and_gather(part_by_threshold(merged, global_threshold_).chosen);
    keep_back(selected, delivered);
    ++step_;
    return {false, std::move(delivered), {}};
  }

  // 6 k (P-1)/P words, without the exact thresholds: 2 in the split, 2 if all pairs are moved, 2 in
  // the gather.
  double bound_bytes() const override {
    return 6 * double(job_.k) * (ranks() - 1) / ranks() * sizeof(float);
  }

  bool delivers_k() const override { return true; }
  int settling_steps() const override { return kSettlingSteps; }

 protected:
  /// Selects, from input and residual, what has a magnitude of at least the local threshold.
  virtual Pairs select(const Input& own) = 0;
  /// Updates the residual: everything that was not both selected and delivered.
  virtual void keep_back(Run selected, Run delivered) = 0;

  bool is_exact() const { return step_ < kSettlingSteps || step_ % job_.tau_prime == 0; }

 private:
  Pairs split_and_reduce(Run selected) {
    if (step_ % job_.tau == 0) begins_ = agreed_ranges(selected);
    Split split(network(), selected, begins_);
    const Run own = split.run_from(0);
    Pairs merged(own.begin(), own.end());
    Network::Requests requests;
    std::vector<Run> arrived;
    for (int first = 1; first < network().ranks(); first += kBucket) {
      const int end = std::min(first + kBucket, network().ranks());
      for (int places = first; places < end; ++places) split.start(places, requests);
      add(merged, std::exchange(arrived, {}));  // while these are under way
      Network::wait(requests);
      for (int places = first; places < end; ++places) arrived.push_back(split.run_from(places));
    }
    add(merged, std::move(arrived));
    return merged;
  }

  static void add(Pairs& merged, std::vector<Run> runs) {
    if (runs.empty()) return;
    runs.emplace_back(merged);
    merged = merge_all(std::move(runs));
  }

  /// The mean of the ranks' proposals, each of which divides that rank's own pairs evenly.
  std::vector<std::uint32_t> agreed_ranges(Run selected) {
    std::vector<std::uint32_t> begins = even_ranges(job_.elements, network().ranks());
    std::vector<std::int64_t> sums(begins.begin(), begins.end());
    const auto parts = std::size_t(network().ranks());
    for (std::size_t r = 1; r < parts && !selected.empty(); ++r)
      sums[r] = selected[selected.size() * r / parts].index;
    network().all_reduce(sums);
    for (std::size_t r = 0; r < begins.size(); ++r)
      begins[r] = std::uint32_t(sums[r] / std::int64_t(parts));
    return begins;
  }

  float exact_global_threshold(Run merged) {
    Dense own = magnitudes_of(merged);
    if (own.size() > job_.k) {
      kth_largest(own, job_.k);
      own.resize(job_.k);
    }
    const std::vector<std::size_t> counts = network().all_gather(own.size());
    std::size_t total = 0;
    for (const std::size_t count : counts) total += count;
    Dense all(total);
    network().all_gather_parts<float>(own, counts, all.data());
    return kth_largest(all, job_.k);
  }

  Pairs balance_and_gather(Pairs own) {
    const std::vector<std::size_t> counts = network().all_gather(own.size());
    std::size_t total = 0;
    for (const std::size_t count : counts) total += count;
    const std::size_t most = *std::max_element(counts.begin(), counts.end());
    if (most * counts.size() > kUnbalanced * total) own = balanced(own, counts, total);
    return gather_pairs(network(), own, gathered_);
  }

  /// This rank's share of all owners' pairs, in order: those from number total r / P on.
  Pairs balanced(Run own, const std::vector<std::size_t>& counts, std::size_t total) {
    const auto share = [&](int r) { return total * std::size_t(r) / counts.size(); };
    const std::size_t begin = share(network().rank()), end = share(network().rank() + 1);
    Pairs mine(end - begin);
    Network::Requests requests;
    std::size_t at = 0;  // where this owner's pairs begin
    for (int owner = 0; owner < network().ranks(); at += counts[std::size_t(owner++)]) {
      const std::size_t last = at + counts[std::size_t(owner)];
      if (owner == network().rank()) send_shares(own, at, share, mine, requests);
      const std::size_t from = std::max(at, begin), to = std::min(last, end);
      if (owner != network().rank() && from < to)
        network().start_receive<Pair>(owner, std::span(mine).subspan(from - begin, to - from),
                                      requests);
    }
    Network::wait(requests);
    return mine;
  }

  /// A part of `own`, whose first pair is number `at` of all pairs.
  template <class Share>
  void send_shares(Run own, std::size_t at, Share share, Pairs& mine, Network::Requests& requests) {
    for (int to = 0; to < network().ranks(); ++to) {
      const std::size_t begin = std::max(at, share(to));
      const std::size_t end = std::min(at + own.size(), share(to + 1));
      if (begin >= end) continue;
      const Run part = own.subspan(begin - at, end - begin);
      if (to == network().rank())
        std::copy(part.begin(), part.end(), mine.begin() + std::ptrdiff_t(begin - share(to)));
      else
        network().start_send<Pair>(to, part, requests);
    }
  }

  std::uint32_t step_ = 0;
  std::vector<std::uint32_t> begins_;
  std::vector<std::size_t> gathered_;
  float global_threshold_ = 0;
};

/// Input of pairs; the residual consists of pairs, too.
class OkTopkOfPairs : public OkTopk {
 public:
  using OkTopk::OkTopk;

  void add_kept(float factor, Dense& to) const override {
    for (const Pair pair : residual_) to[pair.index] += factor * pair.value;
  }

 protected:
  Pairs select(const Input& own) override {
    const Pairs all = merge(own.pairs, residual_);
    if (is_exact()) {
      Dense magnitudes = magnitudes_of(all);
      threshold_ = kth_largest(magnitudes, job_.k);
    }
    Parted parted = part_by_threshold(all, threshold_);
    residual_ = std::move(parted.rest);
    return std::move(parted.chosen);
  }

  void keep_back(Run selected, Run delivered) override {
    residual_ = merge(residual_, part_by_indices(selected, delivered).rest);
  }

 private:
  Pairs residual_;
  float threshold_ = 0;
};

/// Input of a dense vector with more non-zero elements than the k that are selected.
class OkTopkOfDense : public OkTopk {
 public:
  explicit OkTopkOfDense(const Job& job) : OkTopk(job), residual_(zeros(job.elements)) {}

  std::size_t nonzeros() const override {
    return std::min<std::size_t>(kNonzeros * job_.k, job_.elements);
  }
  bool starts_dense() const override { return true; }

  void add_kept(float factor, Dense& to) const override {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * residual_[i];
  }

 protected:
  Pairs select(const Input& own) override {
    for (std::size_t i = 0; i < residual_.size(); ++i) residual_[i] += own.values[i];
    if (is_exact()) threshold_ = exact_threshold();
    Pairs selected(std::max<std::size_t>(room_, 1));
    std::size_t count = 0;
    for (std::size_t i = 0; i < residual_.size(); ++i) {
      if (count == selected.size()) selected.resize(2 * count);
      selected[count] = {std::uint32_t(i), residual_[i]};
      count += std::fabs(residual_[i]) >= threshold_;
    }
    selected.resize(count);
    room_ = count + count / 8;
    return selected;
  }

  void keep_back(Run selected, Run delivered) override {
    for (const Pair pair : part_by_indices(selected, delivered).chosen) residual_[pair.index] = 0;
  }

 private:
  static constexpr std::size_t kNonzeros = 4;  // times k

  /// Never 0, which all elements reach.
  float exact_threshold() const {
    Dense magnitudes;
    for (const float value : residual_)
      if (value != 0) magnitudes.push_back(std::fabs(value));
    const float threshold = kth_largest(magnitudes, job_.k);
    return threshold > 0 ? threshold : std::numeric_limits<float>::min();
  }

  Dense residual_;
  float threshold_ = 0;
  std::size_t room_ = job_.k;
};

}  // namespace

std::unique_ptr<Algorithm> make_ok_topk(const Job& job) {
  return std::make_unique<OkTopkOfPairs>(job);
}

std::unique_ptr<Algorithm> make_ok_topk_from_dense(const Job& job) {
  return std::make_unique<OkTopkOfDense>(job);
}

}  // namespace sparse
