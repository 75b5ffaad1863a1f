#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

bool sustained(const Window& trial) {
  constexpr double kReached = 0.99;
  return trial.offered > 0 && trial.losses() == 0 &&
         trial.data_per_second() >= kReached * trial.offered;
}

const Window& best_of(const std::vector<Window>& trials) {
  const Window* best = &trials.front();
  for (const Window& trial : trials)
    if (sustained(trial) && trial.offered > best->offered) best = &trial;
  return *best;
}

void Report::add(const Report& lane) {
  window.add(lane.window);
  total.add(lane.total);
}

}  // namespace sluice::pktgen
