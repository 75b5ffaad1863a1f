#include "aggregator/engine/job_figures.hpp"

#include <algorithm>

namespace sluice::aggregator {

JobFigures& JobFigures::operator+=(const JobFigures& other) {
  if (!active) session = other.session;
  if (name.empty()) name = other.name;
  active |= other.active;
  // The lane that has received from the rank last decides how long it is silent.
  if (!other.present.empty() && (present.empty() || other.silence < silence)) {
    most_silent = other.most_silent;
    silence = other.silence;
  }
  present |= other.present;
  waited_for |= other.waited_for;
  waiting = std::max(waiting, other.waiting);
  buffers_claimed += other.buffers_claimed;
  stream_limit = std::max(stream_limit, other.stream_limit);
  counters += other.counters;
  return *this;
}

}  // namespace sluice::aggregator
