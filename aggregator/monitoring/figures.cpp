#include "aggregator/monitoring/figures.hpp"

namespace sluice::aggregator {

std::map<std::uint32_t, JobFigures> jobs_of(const Figures& figures) {
  std::map<std::uint32_t, JobFigures> jobs;
  for (const LaneFigures& lane : figures.lanes) {
    for (const JobFigures& job : lane.jobs) {
      const auto [known, is_new] = jobs.try_emplace(job.session.job, job);
      if (!is_new) known->second += job;
    }
  }
  return jobs;
}

}  // namespace sluice::aggregator
