#include "common/net/eal_log.hpp"

#include <algorithm>

#include <rte_log.h>
#include <spdlog/spdlog.h>
#include <sys/types.h>

#include "common/log/logger.hpp"

namespace sluice::net {
namespace {

constexpr std::size_t kComplaintsMax = 4;

std::uint32_t to_dpdk(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return RTE_LOG_ERR;
    case LogLevel::kWarn:
      return RTE_LOG_WARNING;
    case LogLevel::kInfo:
      return RTE_LOG_INFO;
    case LogLevel::kDebug:
    case LogLevel::kTrace:
      break;
  }
  return RTE_LOG_DEBUG;
}

LogLevel from_dpdk(int level) {
  if (level <= static_cast<int>(RTE_LOG_ERR)) return LogLevel::kError;
  if (level == static_cast<int>(RTE_LOG_WARNING)) return LogLevel::kWarn;
  if (level <= static_cast<int>(RTE_LOG_INFO)) return LogLevel::kInfo;
  return LogLevel::kDebug;
}

void to_default_logger(LogLevel level, std::string_view text) {
  spdlog::log(to_spdlog(level), "dpdk: {}", text);
}

// Complaints of DPDK about things that are not wrong: vhost and virtio-user complain of every peer
// that comes, goes or dies, which daemons and workers report themselves; telemetry complains of a
// socket for very old clients. Since 24.11 it names a part of virtio before the function.
bool is_routine(std::string_view text) {
  for (const std::string_view part : {"VIRTIO_DRIVER: ", "VIRTIO_INIT: "})
    if (text.starts_with(part)) text.remove_prefix(part.size());
  return text.starts_with("VHOST_CONFIG") || text.starts_with("vhost_user_") ||
         text.starts_with("virtio_user_") || text.starts_with("TELEMETRY: No legacy callbacks");
}

ssize_t write_to_log(void* log, const char* text, std::size_t size) {
  static_cast<EalLog*>(log)->write({text, size});
  return static_cast<ssize_t>(size);
}

}  // namespace

EalLog& EalLog::instance() {
  static auto* log = new EalLog;
  return *log;
}

void EalLog::open(LogSink sink, LogLevel level) {
  const std::lock_guard lock(mutex_);
  sink_ = sink ? std::move(sink) : LogSink(to_default_logger);
  level_ = level;
  if (!stream_) {
    stream_ = fopencookie(
        this, "w", {.read = nullptr, .write = write_to_log, .seek = nullptr, .close = nullptr});
    // Unbuffered: a message arrives on the thread that wrote it, while its level is known. From
    // glibc 2.37 on it comes in pieces of 128 bytes.
    setvbuf(stream_, nullptr, _IONBF, 0);
  }
  rte_openlog_stream(stream_);
  rte_log_set_global_level(to_dpdk(std::min(level, LogLevel::kWarn)));
}

void EalLog::collect() {
  const std::lock_guard lock(mutex_);
  complaints_.clear();
  collecting_ = true;
}

std::string EalLog::collected() {
  const std::lock_guard lock(mutex_);
  collecting_ = false;
  std::string all;
  for (const std::string& complaint : complaints_) all += (all.empty() ? "" : "; ") + complaint;
  return all;
}

void EalLog::write(std::string_view text) {
  const LogLevel level = from_dpdk(rte_log_cur_msg_loglevel());
  const std::lock_guard lock(mutex_);
  for (const char c : text) {
    if (c != '\n') {
      begun_ += c;
    } else if (!begun_.empty()) {
      line(level, begun_);
      begun_.clear();
    }
  }
}

void EalLog::say(LogLevel level, std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!sink_) sink_ = to_default_logger;
  line(level, text);
}

void EalLog::line(LogLevel level, std::string_view text) {
  if (collecting_ && level >= LogLevel::kWarn) {
    complaints_.emplace_back(text);
    if (complaints_.size() > kComplaintsMax) complaints_.pop_front();
  }
  if (is_routine(text)) level = std::min(level, LogLevel::kInfo);
  if (level >= level_) sink_(level, text);
}

}  // namespace sluice::net
