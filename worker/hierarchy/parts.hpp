// The memberships that make up one membership in a job of several hosts. Each is in a job of its
// own.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/ids.hpp"
#include "worker/engine/job_label.hpp"
#include "worker/hierarchy/placement.hpp"
#include "worker/host/sums.hpp"
#include "worker/job/membership.hpp"

namespace sluice::worker::hierarchy {

/// All memberships except `whole` (hierarchical_membership.hpp). Each begins to join.
struct Parts {
  std::unique_ptr<host::Sums> gather;
  std::unique_ptr<host::Sums> spread;        ///< null where all are on one host
  std::unique_ptr<sluice::Membership> rail;  ///< null on a rank that carries no share
};

/// The job of the ranks that carry the same share.
struct Rail {
  std::uint32_t job = 0;
  JobLabel alias = {};
  Rank rank = {};           ///< this rank's number in the rail, which is the number of its host
  std::uint16_t ranks = 1;  ///< one rank of each host
};

/// How a rank joins these jobs.
class Joining {
 public:
  virtual ~Joining() = default;
  /// Joins the ranks of its host.
  virtual std::unique_ptr<host::Sums> join_host(std::uint32_t job) = 0;
  virtual std::unique_ptr<sluice::Membership> join_rail(const Rail& rail) = 0;
};

/// `whole` is active.
Parts join_parts(const JobLabel& label, const Placement& placement, const sluice::Membership& whole,
                 Joining& joining);

}  // namespace sluice::worker::hierarchy
