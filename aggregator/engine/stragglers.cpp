#include "aggregator/engine/stragglers.hpp"

namespace sluice::aggregator {

void StragglerWatch::begin(std::size_t streams, Duration interval, Time now) {
  seen_.assign(streams, std::nullopt);
  look_again(interval, now);
}

std::optional<Straggler> StragglerWatch::look(std::span<const Stream> streams, Duration interval,
                                              Time now) {
  look_again(interval, now);
  Straggler worst;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const Stream& stream = streams[i];
    auto& seen = seen_[i];
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
  if (worst.streams == 0) return std::nullopt;
  return worst;
}

}  // namespace sluice::aggregator
