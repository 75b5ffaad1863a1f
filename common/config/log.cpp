#include "common/config/log.hpp"

#include <atomic>
#include <bit>
#include <cstdio>
#include <exception>
#include <system_error>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "common/log/formats.hpp"

namespace sluice::config {
namespace {

std::atomic<std::uint64_t> write_failures{0};

// Told on standard error, which may work when the log's disk is full, and ever more rarely.
void on_write_failure(const std::string& what) {
  const std::uint64_t count = ++write_failures;
  if (std::has_single_bit(count))
    std::fprintf(stderr, "log: %s (%llu failures so far)\n", what.c_str(),
                 static_cast<unsigned long long>(count));
}

spdlog::sink_ptr open_journal(const std::string& socket) {
  try {
    return journal_sink(socket);
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kUnavailable, "log-format journald: the journal's socket '" + socket +
                                             "': " + error.code().message());
  }
}

spdlog::sink_ptr open_sink(const LogOptions& options) {
  if (options.format == LogFormat::kJournald) return open_journal(options.journal_socket);
  const std::string& file = options.file;
  if (file.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kUnavailable, "log-file '" + file + "': " + error.what());
  }
}

}  // namespace

std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options) {
  auto logger = std::make_shared<spdlog::logger>(options.name, open_sink(options));
  logger->set_formatter(options.format == LogFormat::kJson ? json_formatter() : text_formatter());
  set_level(*logger, options.level);
  logger->flush_on(spdlog::level::trace);
  logger->set_error_handler(on_write_failure);
  return logger;
}

void set_level(spdlog::logger& logger, LogLevel level) {
  logger.set_level(to_spdlog(level));
}

std::uint64_t log_write_failures() {
  return write_failures;
}

}  // namespace sluice::config
