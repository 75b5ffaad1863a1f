// How many cores this process may use without taking time from other processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace sluice::config {

struct Cores {
  std::uint32_t allowed = 1;           ///< by the process's affinity
  std::optional<std::uint32_t> quota;  ///< as many may be busy all the time; none: no quota

  std::uint32_t usable() const { return quota && *quota < allowed ? *quota : allowed; }
  /// "16 cores", "1 core", "2 cores (of 16, by a CPU quota)".
  std::string describe() const;
};

/// The cores of the calling thread, and of the process's control group.
Cores usable_cores();

/// The CPU quota of a process whose /proc/PID/cgroup is that file, in whole cores, at least one:
/// the least of its group's and of those above it. Groups of version 1 and 2 are below `mount`.
std::optional<std::uint32_t> cpu_quota(const std::filesystem::path& cgroup_file,
                                       const std::filesystem::path& mount);

}  // namespace sluice::config
