#include "worker/hierarchy/parts.hpp"

#include <string>

#include "worker/job/derived_job.hpp"

namespace sluice::worker::hierarchy {
namespace {

// Numbers for derived jobs, above those of channels.
constexpr std::uint32_t kGatherJob = 0x1'0000;
constexpr std::uint32_t kSpreadJob = 0x1'0001;
constexpr std::uint32_t kFirstRail = 0x2'0000;

}  // namespace

Parts join_parts(const JobLabel& label, const Placement& placement, const sluice::Membership& whole,
                 Joining& joining) {
  const Rank self = whole.rank();
  const std::uint16_t rail = placement.local_rank_of(self);
  const auto id_of = [&](std::uint32_t which) {
    return derived_job(whole.job(), whole.session().generation, which);
  };
  Parts parts;
  parts.gather = joining.join_host(id_of(kGatherJob));
  if (placement.hosts() == 1) return parts;
  parts.spread = joining.join_host(id_of(kSpreadJob));
  if (rail < placement.rails())
    parts.rail = joining.join_rail(
        {.job = id_of(kFirstRail | rail),
         .alias = {.job = label.job,
                   .ranks = placement.rail(rail),
                   .announced_name = label.announced_name_of_part("rail-" + std::to_string(rail))},
         .rank = Rank{placement.host_of(self)},
         .ranks = placement.hosts()});
  return parts;
}

}  // namespace sluice::worker::hierarchy
