// What the streams of one job share: its members, whether they are sent away, its window, its
// counters, and the engine's context. The job owns it, and it outlives the streams.
#pragma once

#include <span>

#include "aggregator/engine/engine_context.hpp"
#include "aggregator/engine/job_figures.hpp"
#include "aggregator/engine/job_membership.hpp"
#include "aggregator/engine/minimum_window.hpp"
#include "aggregator/engine/retirement.hpp"
#include "common/base/endpoint.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/protection.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

struct JobContext {
  EngineContext& engine;
  JobMembership& membership;
  Retirement retirement{};
  MinimumWindow window{};
  JobCounters counters{};

  const Session& session() const { return membership.members().session(); }
  std::span<const Endpoint> endpoints() const { return membership.members().endpoints(); }
  const RankSet& present() const { return membership.members().present(); }
  Multicast& multicast() { return membership.multicast(); }
  /// How packets of streams are protected.
  Protection protection() const { return membership.record().protection.of(wire::Kind::kResult); }
};

}  // namespace sluice::aggregator
