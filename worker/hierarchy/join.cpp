#include "worker/hierarchy/join.hpp"

#include <utility>

#include "worker/derived_job.hpp"
#include "worker/host/membership.hpp"

namespace sluice::worker::hierarchy {
namespace {

// Which of the jobs that are derived from one: beyond those of its channels.
constexpr std::uint32_t kGatherJob = 0x1'0000;
constexpr std::uint32_t kSpreadJob = 0x1'0001;
constexpr std::uint32_t kFirstRail = 0x2'0000;

}  // namespace

std::unique_ptr<Membership> join(const Surroundings& surroundings, const KnownAs& known_as,
                                 const Placement& placement,
                                 std::unique_ptr<AggregatorMembership> whole, Time now) {
  const Session& session = whole->session();
  const Rank self = whole->rank();
  const std::uint16_t rail = placement.local_rank_of(self);
  const auto id_of = [&](std::uint32_t which) {
    return derived_job(whole->job(), session.generation, which);
  };
  const auto join_host = [&](std::uint32_t which) {
    return std::make_unique<host::Membership>(
        host::Membership::Surroundings{
            .host = surroundings.host,
            .uses_processes = surroundings.progress.options().host_process_vm,
            .payload_bytes = session.payload_bytes,
            .logger = surroundings.progress.logger()},
        host::Membership::Ranks{
            .job = id_of(which),
            .all = placement.ranks_of(placement.host_of(self)),
            .self = rail,
            .of_job = placement.ranks(),
            .block_elements = session.block_elements,
            .join_timeout = surroundings.join_timeout,
            .advice = "with SLUICE_HOST_LEVEL=0 on all ranks each joins the aggregators by itself"},
        known_as, surroundings.secret, now);
  };
  Parts parts;
  parts.gather = join_host(kGatherJob);
  if (placement.hosts() > 1) {
    parts.spread = join_host(kSpreadJob);
    if (rail < placement.rails())
      parts.rail = whole->join_beside(
          {.job = id_of(kFirstRail | rail),
           .alias = {.job = known_as.job,
                     .ranks = placement.rail(rail),
                     .told = known_as.told_of_part("rail-" + std::to_string(rail))},
           .rank = Rank{placement.host_of(self)},
           .ranks = placement.hosts()},
          now);
  }
  return std::make_unique<Membership>(known_as, placement, std::move(whole), std::move(parts));
}

}  // namespace sluice::worker::hierarchy
