// How often a sender that is not a member is answered: a number of times a second per source,
// whatever it sends. A source is a port, an IPv4 address and a UDP port. Sources share a fixed
// number of buckets, so that memory is bounded and a flood from one source affects few others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/base/endpoint.hpp"
#include "common/base/limits.hpp"
#include "common/base/time.hpp"

namespace sluice::aggregator {

class ReplyBudget {
 public:
  /// `per_second` must be at least 1. It is also the number of answers that may go out at once
  /// after a quiet second. `seed` decides which sources share a bucket: an attacker must not guess
  /// it.
  ReplyBudget(std::uint32_t per_second, std::uint64_t seed)
      : interval_(std::chrono::nanoseconds(std::chrono::seconds(1)) / per_second), seed_(seed) {}

  void set_rate(std::uint32_t per_second) {
    interval_ = std::chrono::nanoseconds(std::chrono::seconds(1)) / per_second;
  }

  /// Whether the source may get one more answer now. This is the generic cell rate algorithm (ITU-T
  /// I.371): a bucket stores the time at which it would be full again.
  bool take(const Endpoint& from, Time now) {
    Time& earliest = buckets_[bucket_of(from)];
    const Time next = std::max(earliest, now) + interval_;
    if (next - now > kBurst) return false;
    earliest = next;
    return true;
  }

 private:
  static constexpr Duration kBurst = std::chrono::seconds(1);

  std::size_t bucket_of(const Endpoint& from) const {
    std::uint64_t x = seed_ ^ (std::uint64_t{from.port_id} << 48 |
                               std::uint64_t{from.udp_port} << 32 | from.ipv4);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;  // the finaliser of SplitMix64
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (x ^ (x >> 31)) % limits::kReplyBuckets;
  }

  Duration interval_;
  std::uint64_t seed_;
  std::array<Time, limits::kReplyBuckets> buckets_{};
};

}  // namespace sluice::aggregator
