#include "common/config/log.hpp"

#include <atomic>
#include <bit>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include <spdlog/details/file_helper.h>
#include <spdlog/sinks/base_sink.h>
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

/// Appended to, and opened again on demand.
class LogFile final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)), file_(opened()) {}

  void reopen() {
    auto fresh = opened();
    const std::lock_guard lock(mutex_);
    file_ = std::move(fresh);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    spdlog::memory_buf_t text;
    formatter_->format(line, text);
    file_->write(text);
  }
  void flush_() override { file_->flush(); }

 private:
  using File = spdlog::details::file_helper;

  std::unique_ptr<File> opened() const {
    try {
      auto file = std::make_unique<File>();
      file->open(path_);
      return file;
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kUnavailable, "log-file '" + path_ + "': " + error.what());
    }
  }

  const std::string path_;
  std::unique_ptr<File> file_;
};

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
  if (options.file.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  return std::make_shared<LogFile>(options.file);
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

bool reopen_log(const spdlog::logger& logger) {
  bool is_file = false;
  for (const spdlog::sink_ptr& sink : logger.sinks())
    if (const auto file = std::dynamic_pointer_cast<LogFile>(sink)) {
      file->reopen();
      is_file = true;
    }
  return is_file;
}

std::uint64_t log_write_failures() {
  return write_failures;
}

}  // namespace sluice::config
