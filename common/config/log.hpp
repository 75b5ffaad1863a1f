// Logging: one spdlog logger per process part, to standard error, a file or systemd's journal.
// It is never used on the hot path: lanes count, and log their counts from a slow turn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/config/choices.hpp"
#include "common/log/logger.hpp"

namespace sluice::config {

struct LogOptions {
  std::string name = "sluice";  ///< printed in every line
  LogLevel level = LogLevel::kInfo;
  std::string file = {};  ///< appended to; empty: standard error. None with kJournald
  LogFormat format = LogFormat::kText;
  std::string journal_socket = "/run/systemd/journal/socket";
};

/// A thread-safe logger that only its owner sees, so a library may use it too; a daemon
/// passes it to spdlog::set_default_logger. Lines are flushed one by one. A line that cannot be
/// written (full disk) is lost and counted, and nothing else happens. Throws kUnavailable when the
/// file cannot be opened, or the journal not be reached.
std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options);

/// Least level to log, from now on; for any thread.
void set_level(spdlog::logger& logger, LogLevel level);

/// Lines go to a new file of the same name from now on, if they go to one: what it was may have
/// been moved (logrotate). Throws kUnavailable when the file cannot be opened: they go on into the
/// old one. For any thread. False: they go to no file.
bool reopen_log(const spdlog::logger& logger);

/// Failed writes and flushes of all loggers of this process.
std::uint64_t log_write_failures();

}  // namespace sluice::config
