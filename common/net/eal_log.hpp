// DPDK's log as lines for a LogSink.
#pragma once

#include <cstdio>
#include <deque>
#include <mutex>
#include <string>

#include "common/base/log_level.hpp"
#include "common/net/eal.hpp"

namespace sluice::net {

/// Once opened it stays for the rest of the process: DPDK's threads may log until the very end.
class EalLog {
 public:
  static EalLog& instance();

  /// Routes DPDK's log to `sink` at `level`.
  void open(LogSink sink, LogLevel level);

  /// Starts to collect complaints (warnings and worse), whatever the level; `collected` gives the
  /// last of them, joined by "; ", and stops.
  void collect();
  std::string collected();

  /// Pieces of lines.
  void write(std::string_view text);

  /// A line of our own, about what DPDK does for us: it goes where DPDK's lines go.
  void say(LogLevel level, std::string_view text);

 private:
  void line(LogLevel level, std::string_view text);

  std::mutex mutex_;
  LogSink sink_;
  LogLevel level_ = LogLevel::kWarn;
  std::FILE* stream_ = nullptr;
  std::string begun_;  ///< a line that has not ended yet
  bool collecting_ = false;
  std::deque<std::string> complaints_;
};

}  // namespace sluice::net
