// How fast a daemon's figures grow, over the last minutes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "aggregator/monitoring/figures.hpp"
#include "common/base/time.hpp"

namespace sluice::aggregator {

/// How dense tensors were: the share of the blocks that ranks have sent, and the share that some
/// rank has sent. Both are empty if nothing was summed.
struct Densities {
  std::optional<double> density;
  std::optional<double> union_density;
};

/// Growth between two moments, per second.
struct JobRates {
  double received_bytes = 0;
  double sent_bytes = 0;
  double rounds = 0;
  Densities densities{};
};

struct Rates {
  Time at{};  ///< the later moment
  double received_datagrams = 0;
  double received_bytes = 0;
  double sent_datagrams = 0;
  double sent_bytes = 0;
  double rounds = 0;
  double busy = 0;  ///< share of the lanes' time in turns that received something
  std::optional<double> cycles_per_packet;   ///< cycles of the time-stamp counter in these turns
  Densities densities{};                     ///< of all jobs together
  std::map<std::uint32_t, JobRates> jobs{};  ///< only in the latest rates
};

class History {
 public:
  static constexpr std::size_t kSamples = 300;

  /// Adds the figures of a later moment.
  void add(const Figures& now);

  /// Oldest first; at most kSamples.
  const std::deque<Rates>& rates() const { return rates_; }

 private:
  std::optional<Figures> before_;
  std::deque<Rates> rates_;
};

}  // namespace sluice::aggregator
