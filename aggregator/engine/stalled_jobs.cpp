#include "aggregator/engine/stalled_jobs.hpp"

#include <algorithm>

#include "aggregator/engine/job.hpp"

namespace sluice::aggregator {

void StalledJobs::add(Job& job, Time now) {
  if (std::find(jobs_.begin(), jobs_.end(), &job) == jobs_.end()) jobs_.push_back(&job);
  due_ = now;
}

void StalledJobs::remove(const Job& job) {
  std::erase(jobs_, &job);
}

void StalledJobs::retry(Time now, PacketSink& sink) {
  std::erase_if(jobs_, [&](Job* job) { return job->retry_stalled(now, sink); });
  due_ = now;
}

}  // namespace sluice::aggregator
