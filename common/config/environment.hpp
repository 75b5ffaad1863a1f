// Settings from environment variables, and a worker's rank from whatever launched it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace sluice::config {

/// The value of a variable. An unset one and an empty one are both nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The environment of this process.
std::optional<std::string> process_environment(const std::string& name);

/// The names of all variables of this process that are set: an empty one is not.
std::vector<std::string> process_variable_names();

/// Place of a process in its job.
struct Placement {
  std::uint16_t rank = 0;
  std::uint16_t world_size = 1;
};

/// From SLUICE_RANK and SLUICE_WORLD_SIZE, else from the first launcher that set both of its own
/// (torchrun, Open MPI, PMI, Slurm), if any. Throws kInvalidArgument with the variable's name, its
/// value and its range.
std::optional<Placement> find_placement(const Environment& environment);

/// How many of so many ranks the launcher has started on this host, if it says so of this job.
/// Throws as find_placement().
std::optional<std::uint16_t> find_local_ranks(const Environment& environment,
                                              std::uint16_t world_size);

/// The same as find_placement(), else rank 0 of 1.
Placement placement_from(const Environment& environment);

}  // namespace sluice::config
