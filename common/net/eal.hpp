// Starts DPDK in a process that may belong to someone else (a trainer): it needs no privilege and
// no hugepages, does not change the calling thread, and writes only to our log.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log_level.hpp"

namespace sluice::net {

/// Which levels of DPDK's log to take if we log at `level`: DPDK's info is our debug.
constexpr LogLevel dpdk_level(LogLevel level) {
  if (level <= LogLevel::kDebug) return LogLevel::kDebug;
  return level == LogLevel::kError ? LogLevel::kError : LogLevel::kWarn;
}

/// Receives DPDK's log line by line, without line ends. Any thread may call it. It must not throw.
using LogSink = std::function<void(LogLevel, std::string_view)>;

struct EalOptions {
  std::string file_prefix;       ///< unique among running processes; empty: "sluice-<pid>"
  bool hugepages = false;        ///< needed for NICs; otherwise anonymous shared memory is used
  bool pci = false;              ///< look for PCI devices
  std::size_t memory_mib = 256;  ///< packet memory, 16 .. 1 Mi MiB
  bool telemetry = false;        ///< serve DPDK's telemetry socket
  LogLevel log_level = LogLevel::kWarn;
  LogSink log;                          ///< empty: spdlog's default logger
  std::vector<std::string> extra_args;  ///< further EAL arguments, as DPDK documents them
};

/// DPDK's environment. There can be one in a process, as DPDK cannot start again. Its packet memory
/// and its sleeping service threads stay until the process ends.
class Eal {
 public:
  /// Throws Error: kInvalidArgument for options out of range, refused arguments or a second
  /// environment; kUnavailable if privilege, hugepages or memory are missing. It does not change
  /// the calling thread's affinity and signal mask.
  explicit Eal(const EalOptions& options);
  ~Eal();
  Eal(const Eal&) = delete;
  Eal& operator=(const Eal&) = delete;
};

/// Bytes of packet memory that no pool or port has taken yet.
std::size_t memory_available();

/// Registers the current thread with DPDK while it lives, so that pools cache buffers for it. If
/// DPDK's table of threads (128) is full, the thread works without caches.
class ThreadRegistration {
 public:
  ThreadRegistration();
  ~ThreadRegistration();
  ThreadRegistration(const ThreadRegistration&) = delete;
  ThreadRegistration& operator=(const ThreadRegistration&) = delete;
};

}  // namespace sluice::net
