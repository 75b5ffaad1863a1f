// A histogram of durations whose buckets are powers of two: an observation costs a few cycles.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/time.hpp"

namespace sluice {

class LatencyHistogram {
 public:
  static constexpr std::size_t kBuckets = 25;  // up to 16.8 s; one more for longer times

  /// Bucket i counts what took at most 2^i us, and longer than the bound of the bucket before.
  static constexpr std::chrono::microseconds upper_bound(std::size_t i) {
    return std::chrono::microseconds(std::int64_t{1} << i);
  }

  void observe(Duration took) {
    sum_ += took;
    const auto us = std::chrono::ceil<std::chrono::microseconds>(took).count();
    const auto bucket = us <= 1 ? 0 : std::bit_width(static_cast<std::uint64_t>(us - 1));
    ++counts_[std::min<std::size_t>(static_cast<std::size_t>(bucket), kBuckets)];
  }

  /// The count of each bucket, not cumulative; the last one has no upper bound.
  const std::array<std::uint64_t, kBuckets + 1>& counts() const { return counts_; }
  Duration sum() const { return sum_; }

  LatencyHistogram& operator+=(const LatencyHistogram& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    sum_ += other.sum_;
    return *this;
  }

 private:
  std::array<std::uint64_t, kBuckets + 1> counts_{};
  Duration sum_{};
};

}  // namespace sluice
