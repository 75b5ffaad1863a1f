#include "worker/hierarchy/join.hpp"

#include <utility>

#include "worker/hierarchy/parts.hpp"
#include "worker/host/host_membership.hpp"

namespace sluice::worker::hierarchy {
namespace {

/// Joins with shared memory on a host, and through the aggregators of `whole`.
class RealJoining final : public Joining {
 public:
  RealJoining(const Surroundings& surroundings, const JobLabel& label, const Placement& placement,
              const AggregatorMembership& whole, Time now)
      : surroundings_(surroundings),
        label_(label),
        placement_(placement),
        whole_(whole),
        now_(now) {}

  std::unique_ptr<host::Sums> join_host(std::uint32_t job) override {
    const Session& session = whole_.session();
    const Rank self = whole_.rank();
    return std::make_unique<host::HostMembership>(
        host::HostMembership::Surroundings{
            .host = surroundings_.host,
            .uses_processes = surroundings_.progress.options().host_process_vm,
            .payload_bytes = session.payload_bytes,
            .logger = surroundings_.progress.logger()},
        host::HostMembership::Ranks{
            .job = job,
            .all = placement_.ranks_of(placement_.host_of(self)),
            .self = placement_.local_rank_of(self),
            .of_job = placement_.ranks(),
            .block_elements = session.block_elements,
            .join_timeout = surroundings_.join_timeout,
            .advice = "with SLUICE_HOST_LEVEL=0 on all ranks each joins the aggregators by itself"},
        label_, surroundings_.secret, now_);
  }
  std::unique_ptr<sluice::Membership> join_rail(const Rail& rail) override {
    return whole_.join_beside(
        {.job = rail.job, .alias = rail.alias, .rank = rail.rank, .ranks = rail.ranks}, now_);
  }

 private:
  const Surroundings& surroundings_;
  const JobLabel& label_;
  const Placement& placement_;
  const AggregatorMembership& whole_;
  const Time now_;
};

}  // namespace

std::unique_ptr<HierarchicalMembership> join(const Surroundings& surroundings,
                                             const JobLabel& label, const Placement& placement,
                                             std::unique_ptr<AggregatorMembership> whole,
                                             Time now) {
  RealJoining joining(surroundings, label, placement, *whole, now);
  Parts parts = join_parts(label, placement, *whole, joining);
  return std::make_unique<HierarchicalMembership>(label, placement, std::move(whole),
                                                  std::move(parts));
}

}  // namespace sluice::worker::hierarchy
