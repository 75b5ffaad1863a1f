// Starts DPDK inside a process that may be someone else's (a trainer): no privilege, no hugepages,
// no trace left on the calling thread, no output but through our log.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log_level.hpp"

namespace sluice::net {

/// How much of DPDK's log to take where we log at `level`: what DPDK calls info is debug to us.
constexpr LogLevel dpdk_level(LogLevel level) {
  if (level <= LogLevel::kDebug) return LogLevel::kDebug;
  return level == LogLevel::kError ? LogLevel::kError : LogLevel::kWarn;
}

/// Receives DPDK's log line by line, without line ends; called from any thread, must not throw.
using LogSink = std::function<void(LogLevel, std::string_view)>;

struct EalOptions {
  std::string file_prefix;       ///< unique per running process; empty: "sluice-<pid>"
  bool hugepages = false;        ///< needed for NICs; else anonymous shared memory
  bool pci = false;              ///< look for PCI devices
  std::size_t memory_mib = 256;  ///< packet memory, 16 .. 1 Mi MiB
  bool telemetry = false;        ///< serve DPDK's telemetry socket
  LogLevel log_level = LogLevel::kWarn;
  LogSink log;                          ///< empty: spdlog's default logger
  std::vector<std::string> extra_args;  ///< further EAL arguments, as DPDK documents them
};

/// DPDK's environment. Once per process: DPDK cannot start again. Its packet memory and its
/// sleeping service threads stay until the process ends.
class Eal {
 public:
  /// Throws Error: kInvalidArgument for options out of range, refused arguments or a second
  /// environment; kUnavailable for want of privilege, hugepages or memory. The calling thread's
  /// affinity and signal mask are as before afterwards.
  explicit Eal(const EalOptions& options);
  ~Eal();
  Eal(const Eal&) = delete;
  Eal& operator=(const Eal&) = delete;
};

/// Packet memory not yet given to pools or ports, in bytes.
std::size_t memory_available();

/// Registers the current thread with DPDK while it lives, so that pools cache buffers for it.
/// When DPDK's table of threads (128) is full the thread works all the same, without caches.
class ThreadRegistration {
 public:
  ThreadRegistration();
  ~ThreadRegistration();
  ThreadRegistration(const ThreadRegistration&) = delete;
  ThreadRegistration& operator=(const ThreadRegistration&) = delete;
};

}  // namespace sluice::net
