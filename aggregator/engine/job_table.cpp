#include "aggregator/engine/job_table.hpp"

#include <vector>

#include "common/base/limits.hpp"

namespace sluice::aggregator {

Job& JobTable::add(std::uint32_t id) {
  forget_ended();
  auto job = std::make_unique<Job>(engine_, id);
  return *(jobs_[id] = std::move(job));
}

std::size_t JobTable::live() const {
  return static_cast<std::size_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return !entry.second->membership().idle();
  }));
}

/// Ended jobs are kept for their tombstones. At a limit, the half that ended first is removed, and
/// all joins that these jobs saw are void.
void JobTable::forget_ended() {
  if (jobs_.size() < limits::kMaxEndedJobs + engine_.config.jobs_max) return;
  std::vector<std::uint64_t> ends;
  for (const auto& [id, job] : jobs_)
    if (job->membership().idle() && job->membership().record().remembers())
      ends.push_back(job->membership().record().mark());
  const auto middle = ends.begin() + static_cast<std::ptrdiff_t>(ends.size() / 2);
  if (middle != ends.end()) std::nth_element(ends.begin(), middle, ends.end());
  const bool crowded = ends.size() >= limits::kMaxEndedJobs;
  std::erase_if(jobs_, [&](const auto& entry) {
    const JobMembership& membership = entry.second->membership();
    if (!membership.idle()) return false;
    return !membership.record().remembers() || (crowded && membership.record().mark() <= *middle);
  });
  engine_.serials.forget();
}

}  // namespace sluice::aggregator
