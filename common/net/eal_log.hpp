// DPDK's log as lines for a LogSink.
#pragma once

#include <cstdio>
#include <deque>
#include <mutex>
#include <string>

#include "common/base/log_level.hpp"
#include "common/net/eal.hpp"

namespace sluice::net {

/// Stays open until the end of the process, as DPDK's threads may log until then.
class EalLog {
 public:
  static EalLog& instance();

  /// Routes DPDK's log to `sink` at `level`.
  void open(LogSink sink, LogLevel level);

  /// collect() starts to collect complaints (warnings and worse) at any level; collected() stops
  /// that and returns the last of them, joined by "; ".
  void collect();
  std::string collected();

  /// Takes pieces of lines.
  void write(std::string_view text);

  /// Logs a line of our own about what DPDK does for us, to the same sink.
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
