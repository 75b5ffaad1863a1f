// The engine's part that tells operators of its jobs.
#include <algorithm>

#include "aggregator/engine/engine.hpp"

namespace sluice::aggregator {

JobFigures& JobFigures::operator+=(const JobFigures& other) {
  if (!active) session = other.session;
  if (name.empty()) name = other.name;
  active |= other.active;
  // A rank is as silent as where it was heard last.
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

std::vector<JobFigures> Engine::figures_of_jobs(Time now) {
  std::vector<JobFigures> all;
  all.reserve(jobs_.size());
  for (const auto& [id, job] : jobs_) {
    if (job->membership.idle()) continue;
    for (Stream& stream : job->streams) stream.charge(now, job->counters);
    all.push_back(figures_of(id, *job, now));
  }
  return all;
}

JobFigures Engine::figures_of(std::uint32_t id, const Job& job, Time now) const {
  JobFigures figures;
  figures.active = job.membership.active();
  figures.counters = job.counters;
  figures.stream_limit = job.window.limited_to();
  figures.session.job = id;
  figures.name = job.membership.record().name;
  if (!figures.active) {
    for (const auto& [rank, candidate] : job.membership.candidates()) {
      figures.present.insert(Rank{rank});
      figures.session.ranks = candidate.join.world_size;
    }
    return figures;
  }
  const Roster& roster = job.membership.roster();
  figures.session = roster.session();
  figures.present = roster.present();
  figures.buffers_claimed = job.buffers_claimed;
  Time begun = now;
  for (const Stream& stream : job.streams) {
    if (stream.begun() == kNever) continue;
    figures.waited_for |= stream.waited_for();
    begun = std::min(begun, stream.begun());
  }
  figures.waiting = now - begun;
  figures.present.for_each([&](Rank r) {
    const Duration silence = roster.silence_of(r, now);
    if (silence < figures.silence) return;
    figures.most_silent = r;
    figures.silence = silence;
  });
  return figures;
}

}  // namespace sluice::aggregator
