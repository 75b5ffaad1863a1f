// How the ranks of a process group become the ranks of a job: through the group's store they agree
// on the job's id and learn the aggregators, then they join. There, too, a rank that cannot join
// tells the others why, so that they do not wait for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sluice/sluice.hpp>

namespace sluice_torch {

/// Settings by their names, in the form of their environment variables.
using Settings = std::map<std::string, std::string>;

struct Membership {
  std::unique_ptr<int> interrupt;            ///< that the communicator looks at, and ...
  std::shared_ptr<sluice::Context> context;  ///< Context::shared; both outlive it
  std::unique_ptr<sluice::Communicator> communicator;
};

/// Settings are those of the environment, then `settings`. Each group is a job of its own, of a
/// random id unless `settings` of rank 0 has "job". Rank 0's aggregators serve ranks that have
/// none. Within `timeout` all ranks must have called this; within that or the setting
/// join_timeout_ms, whichever is shorter, all must open their ports, and then join. `global_ranks`:
/// of the group's ranks; empty: all ranks there are. Throws std::invalid_argument for a setting,
/// pybind11::error_already_set if a signal's handler raises meanwhile, else std::runtime_error:
/// also if other ranks make a group at the same time that overlaps this one. Python's lock must not
/// be held.
Membership join(c10d::Store& store, int rank, int size,
                const std::vector<std::int64_t>& global_ranks, std::chrono::milliseconds timeout,
                const Settings& settings);

}  // namespace sluice_torch
