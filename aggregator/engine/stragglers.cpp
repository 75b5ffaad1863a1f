// The engine's part that tells whom ops wait for.
#include "aggregator/engine/engine.hpp"

namespace sluice::aggregator {

/// Tells of the first rank that is waited for on a stream which runs the same round as at the last
/// look.
void Engine::look_for_stragglers(Job& job, Time now) {
  job.stragglers_due =
      config_.straggler_warning.count() == 0 ? kNever : after(now, config_.straggler_warning);
  Straggler worst;
  for (std::size_t i = 0; i < job.streams.size(); ++i) {
    const Stream& stream = job.streams[i];
    auto& seen = job.rounds_seen[i];
    const bool runs_on = stream.busy() && seen && seen->round == stream.rounds().running();
    if (!stream.busy())
      seen.reset();
    else if (!runs_on)
      seen = {stream.rounds().running(), now};
    if (!runs_on || stream.stalled()) continue;
    const RankSet waited_for = stream.waited_for();
    if (waited_for.empty() || worst.streams++ != 0) continue;
    worst.rank = Rank{waited_for.lowest()};
    worst.op = stream.op();
    worst.waited = now - seen->since;
  }
  if (worst.streams == 0) return;
  ++counters_.stragglers_seen;
  ++job.counters.stragglers_seen;
  worst.last_heard = job.membership.roster().silence_of(worst.rank, now);
  tell({.kind = JobEvent::Kind::kStraggler,
        .session = job.membership.roster().session(),
        .straggler = worst});
}

}  // namespace sluice::aggregator
