// How often each latency occurred: a log-linear histogram after Gil Tene's HdrHistogram. It has a
// fixed size, recording is a shift and an increment, and its values are at most 1/64 too high.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice::pktgen {

class Histogram {
 public:
  void record(std::uint64_t value) {
    ++counts_[bucket_of(value)];
    ++count_;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }

  void add(const Histogram& other) {
    for (std::size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
  }

  std::uint64_t count() const { return count_; }
  std::uint64_t min() const { return count_ == 0 ? 0 : min_; }
  std::uint64_t max() const { return max_; }

  /// The smallest value that at least `share` (0..1) of all values do not exceed; 0 if there are
  /// none.
  std::uint64_t at(double share) const;

 private:
  // Values below 2 * kSub have a bucket each; from there on each power of two has kSub buckets.
  static constexpr unsigned kSubBits = 6;
  static constexpr std::uint64_t kSub = 1 << kSubBits;
  static constexpr std::size_t kBuckets = (64 - kSubBits + 1) * kSub;

  static std::size_t bucket_of(std::uint64_t value) {
    const auto width = static_cast<unsigned>(std::bit_width(value | kSub));
    const unsigned shift = width - kSubBits - 1;
    return shift * kSub + (value >> shift);
  }
  static std::uint64_t highest_of(std::size_t bucket);

  std::array<std::uint64_t, kBuckets> counts_{};
  std::uint64_t count_ = 0;
  std::uint64_t min_ = ~std::uint64_t{0};
  std::uint64_t max_ = 0;
};

}  // namespace sluice::pktgen
