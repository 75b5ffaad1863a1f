// The memberships of which one in a job of several hosts is made, each in a job of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/ids.hpp"
#include "worker/engine/known_as.hpp"
#include "worker/hierarchy/placement.hpp"
#include "worker/host/sums.hpp"
#include "worker/job/membership.hpp"

namespace sluice::worker::hierarchy {

/// What there is beside `whole` (membership.hpp), each beginning to join.
struct Parts {
  std::unique_ptr<host::Sums> gather;
  std::unique_ptr<host::Sums> spread;        ///< null where all are on one host
  std::unique_ptr<sluice::Membership> rail;  ///< null on a rank that carries nothing
};

/// The job of the ranks that carry one share.
struct Rail {
  std::uint32_t job = 0;
  KnownAs alias = {};
  Rank rank = {};           ///< in it: the number of our host
  std::uint16_t ranks = 1;  ///< a rank of each host
};

/// How a rank joins them.
class Joining {
 public:
  virtual ~Joining() = default;
  /// The ranks of its host.
  virtual std::unique_ptr<host::Sums> join_host(std::uint32_t job) = 0;
  virtual std::unique_ptr<sluice::Membership> join_rail(const Rail& rail) = 0;
};

/// `whole` is active.
Parts join_parts(const KnownAs& known_as, const Placement& placement,
                 const sluice::Membership& whole, Joining& joining);

}  // namespace sluice::worker::hierarchy
