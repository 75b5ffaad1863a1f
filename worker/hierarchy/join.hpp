// How a rank joins the jobs that a hierarchical membership consists of.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/time.hpp"
#include "common/protocol/secret.hpp"
#include "worker/engine/job_label.hpp"
#include "worker/hierarchy/hierarchical_membership.hpp"
#include "worker/hierarchy/placement.hpp"
#include "worker/loop/aggregator_membership.hpp"
#include "worker/loop/progress.hpp"

namespace sluice::worker::hierarchy {

/// What it needs of its process and its job.
struct Surroundings {
  const Progress& progress;
  std::string host;  ///< its name
  std::chrono::milliseconds join_timeout;
  std::shared_ptr<const Secret> secret;  ///< or null
};

/// Begins to join. `whole` is active and has no pending op.
std::unique_ptr<HierarchicalMembership> join(const Surroundings& surroundings,
                                             const JobLabel& label, const Placement& placement,
                                             std::unique_ptr<AggregatorMembership> whole, Time now);

}  // namespace sluice::worker::hierarchy
