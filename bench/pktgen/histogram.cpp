#include "bench/pktgen/histogram.hpp"

#include <cmath>

namespace sluice::pktgen {

std::uint64_t Histogram::highest_of(std::size_t bucket) {
  if (bucket < 2 * kSub) return bucket;
  const std::size_t shift = bucket / kSub - 1;
  return ((bucket - shift * kSub + 1) << shift) - 1;
}

std::uint64_t Histogram::at(double share) const {
  const double wanted = std::ceil(share * static_cast<double>(count_));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += counts_[bucket];
    if (counts_[bucket] != 0 && static_cast<double>(seen) >= wanted)
      return std::clamp(highest_of(bucket), min_, max_);
  }
  return 0;
}

}  // namespace sluice::pktgen
