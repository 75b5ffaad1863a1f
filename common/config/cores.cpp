#include "common/config/cores.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <vector>

#include <sched.h>

#include "common/config/value.hpp"

namespace sluice::config {
namespace {

namespace fs = std::filesystem;

// The cores of a thread that may run on every core of the largest machine that Linux knows.
constexpr int kMostCores = 1 << 16;

std::uint32_t cores_of_affinity() {
  for (int cores = CPU_SETSIZE; cores <= kMostCores; cores *= 2) {
    // The kernel refuses a set that is smaller than its own.
    std::vector<cpu_set_t> set(CPU_ALLOC_SIZE(cores) / sizeof(cpu_set_t));
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0)
      return static_cast<std::uint32_t>(std::max(1, CPU_COUNT_S(bytes, set.data())));
  }
  return 1;
}

/// The words of a file's first line, "max 100000".
std::vector<std::string> words_of(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return split(line);
}

/// The cores of a time per period, both in microseconds: "max" and -1 mean no quota.
std::optional<std::uint32_t> whole_cores(const std::string& time, const std::string& period) {
  const auto number = [](const std::string& text) {
    std::int64_t value = -1;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const std::int64_t of = number(period);
  if (number(time) <= 0 || of <= 0) return std::nullopt;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(number(time) / of, 1, kMostCores));
}

std::optional<std::uint32_t> quota_of_group(const fs::path& group) {
  if (const auto both = words_of(group / "cpu.max"); both.size() == 2)
    return whole_cores(both[0], both[1]);
  const auto time = words_of(group / "cpu.cfs_quota_us");
  const auto period = words_of(group / "cpu.cfs_period_us");
  if (time.size() != 1 || period.size() != 1) return std::nullopt;
  return whole_cores(time[0], period[0]);
}

/// A group's directory below `mount` ends in `path`. In a container the path may be the host's, of
/// which only the last directories, or none, are there: those above are looked at in any case.
std::optional<std::uint32_t> least_quota(const fs::path& mount, const std::string& path) {
  std::optional<std::uint32_t> least;
  fs::path group = fs::path(path).lexically_normal().relative_path();
  while (true) {
    if (const auto quota = quota_of_group(mount / group); quota && (!least || *quota < *least))
      least = quota;
    if (group.empty()) return least;
    group = group.parent_path();
  }
}

}  // namespace

std::optional<std::uint32_t> cpu_quota(const fs::path& cgroup_file, const fs::path& mount) {
  std::optional<std::uint32_t> least;
  std::ifstream file(cgroup_file);
  for (std::string line;
       std::getline(file, line);) {  // "4:cpu,cpuacct:/PATH"; version 2: "0::/PATH"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool is_cpu =
        std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end();
    if (!controllers.empty() && !is_cpu) continue;
    const auto quota = least_quota(is_cpu ? mount / "cpu" : mount, line.substr(second + 1));
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

Cores usable_cores() {
  return {cores_of_affinity(), cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup")};
}

std::string Cores::describe() const {
  const std::uint32_t count = usable();
  const std::string text = std::to_string(count) + (count == 1 ? " core" : " cores");
  return count == allowed ? text : text + " (of " + std::to_string(allowed) + ", by a CPU quota)";
}

}  // namespace sluice::config
