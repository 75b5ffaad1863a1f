// SparCML's DSAR by split and allgather: as SSAR, but the merged ranges are dense, and may be
// quantised by QSGD. Owners, too, take the quantised form of their range, so that all ranks have
// the same sum.
#include <algorithm>

#include "bench/lib/peers/sparse/algorithm.hpp"
#include "bench/lib/peers/sparse/qsgd.hpp"
#include "bench/lib/peers/sparse/split_stage.hpp"

namespace sparse {
namespace {

constexpr int kPlain = 32;  // bits

/// The values of the range of rank r.
template <class Values>
auto range_of(Values& values, const std::vector<std::uint32_t>& begins, std::size_t r) {
  return std::span(values).subspan(begins[r], begins[r + 1] - begins[r]);
}

class DenseSplitAllgather : public Algorithm {
 public:
  DenseSplitAllgather(const Job& job, int bits)
      : Algorithm(job), bits_(bits), begins_(even_ranges(job.elements, job.network->ranks())) {}

  Stream sum(const Input& own) override {
    Split split(network(), own.pairs, begins_);
    Stream sum{true, {}, Dense(job_.elements)};
    const std::span<float> range = range_of(sum.values, begins_, std::size_t(network().rank()));
    std::fill(range.begin(), range.end(), 0.0F);
    for (const Run run : split.exchange())
      add_pairs(run, begins_[std::size_t(network().rank())], range);
    bits_ == kPlain ? gather(range, sum.values) : gather_quantised(range, sum.values);
    return sum;
  }

  // k (P-1)/P pairs in the split; then N (P-1)/P values of 4 bytes, or of b bits with a scale of 4
  // bytes for each bucket of them.
  double bound_bytes() const override {
    const double second = bits_ == kPlain ? dense_bytes() : qsgd::bytes(job_.elements, bits_);
    return (k_bytes() + second) * (ranks() - 1) / ranks();
  }

  Dense allowed_errors(const Dense& /*own*/, const Dense& exact) const override {
    if (bits_ == kPlain) return {};
    Dense errors;
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) {
      const Dense of_range = qsgd::error_bounds(range_of(exact, begins_, r), bits_);
      errors.insert(errors.end(), of_range.begin(), of_range.end());
    }
    return errors;
  }

 private:
  void gather(std::span<const float> own, Dense& all) {
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r)
      counts.push_back(begins_[r + 1] - begins_[r]);
    network().all_gather_parts<float>(own, counts, all.data());
  }

  void gather_quantised(std::span<const float> own, Dense& all) {
    std::vector<std::size_t> counts;
    std::size_t total = 0;
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) {
      counts.push_back(qsgd::bytes(begins_[r + 1] - begins_[r], bits_));
      total += counts.back();
    }
    const Buffer<std::uint8_t> quantised = qsgd::encode(own, bits_, ++seed_);
    Buffer<std::uint8_t> parts(total);
    network().all_gather_parts<std::uint8_t>(quantised, counts, parts.data());
    std::size_t at = 0;
    for (std::size_t r = 0; r < counts.size(); at += counts[r++])
      qsgd::decode(std::span(parts).subspan(at, counts[r]), bits_, range_of(all, begins_, r));
  }

  int bits_;
  std::vector<std::uint32_t> begins_;
  std::uint64_t seed_ = job_.seed * 1000 + std::uint64_t(job_.network->rank()) * 1'000'000;
};

}  // namespace

std::unique_ptr<Algorithm> make_dsar_split_allgather(const Job& job, int bits) {
  return std::make_unique<DenseSplitAllgather>(job, bits);
}

}  // namespace sparse
