#include "bench/pktgen/stage_clock.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sluice::pktgen {
StageCycles StageCycles::since(const StageCycles& earlier) const {
  StageCycles part = *this;
  part.cycles -= earlier.cycles;
  part.packets -= earlier.packets;
  for (std::size_t s = 0; s < kStages; ++s) part.stages[s] -= earlier.stages[s];
  return part;
}

void StageCycles::add(const StageCycles& other) {
  cycles += other.cycles;
  packets += other.packets;
  for (std::size_t i = 0; i < kStages; ++i) stages[i] += other.stages[i];
}

double StageCycles::per_packet() const {
  return packets == 0 ? 0 : static_cast<double>(cycles) / static_cast<double>(packets);
}

double StageCycles::share(Stage stage) const {
  const double all = std::accumulate(stages.begin(), stages.end(), 0.0);
  return all == 0 ? 0 : stages[static_cast<std::size_t>(stage)] / all;
}

StageClock::StageClock() {
  constexpr int kTries = 100;
  constexpr int kEnters = 100;
  sampling_ = true;
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries; ++i) {  // the scheduler may interrupt some
    const std::uint64_t begin = cycles();
    for (int n = 0; n < kEnters; ++n) enter(Stage::kOther);
    least = std::min(least, static_cast<double>(cycles() - begin) / kEnters);
  }
  cost_of_enter_ = least;
  spent_ = left_ = {};
}

void StageClock::count(std::size_t packets) {
  ++turn_;
  if (!sampling_) {
    sums_.cycles += cycles() - begin_;
    sums_.packets += packets;
    return;
  }
  for (std::size_t s = 0; s < kStages; ++s) {
    const double cost = static_cast<double>(left_[s]) * cost_of_enter_;
    sums_.stages[s] += std::max(0.0, static_cast<double>(spent_[s]) - cost);
  }
}

}  // namespace sluice::pktgen
