#include "aggregator/daemon/service_manager.hpp"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <sluice/error.hpp>

namespace sluice::aggregator {
namespace {

// How often per interval. systemd asks for two; in the rest of the interval a lane may make no
// turn.
constexpr int kFeedsPerInterval = 2;

std::optional<std::int64_t> number(const std::optional<std::string>& text) {
  std::int64_t value = 0;
  if (!text) return {};
  const char* const end = text->data() + text->size();
  const auto [read, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || read != end) return {};
  return value;
}

Duration watchdog_interval(const config::Environment& environment) {
  const auto pid = number(environment("WATCHDOG_PID"));
  if (pid && *pid != getpid()) return {};  // meant for a process that started this one
  return std::chrono::microseconds(number(environment("WATCHDOG_USEC")).value_or(0));
}

memory::Descriptor connect_to(const std::string& path) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::kUnavailable,
                "the service manager's socket '" + path + "' (NOTIFY_SOCKET): " + why);
  };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) refuse("a path of at most 107 bytes is expected");
  path.copy(address.sun_path, path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';  // an abstract name
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  memory::Descriptor made(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    refuse(std::strerror(errno));
  return made;
}

std::int64_t monotonic_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

ServiceManager::ServiceManager(const config::Environment& environment,
                               std::shared_ptr<spdlog::logger> logger)
    : logger_(std::move(logger)) {
  const auto path = environment("NOTIFY_SOCKET");
  if (!path) return;
  watchdog_ = watchdog_interval(environment);
  socket_ = connect_to(*path);
  send_ = [this](const std::string& lines) {
    if (send(socket_.get(), lines.data(), lines.size(), MSG_NOSIGNAL) < 0)
      logger_->warn("the service manager was not told {}: {}", lines, std::strerror(errno));
  };
}

ServiceManager::ServiceManager(Send send, Duration watchdog, std::shared_ptr<spdlog::logger> logger)
    : send_(std::move(send)), watchdog_(watchdog), logger_(std::move(logger)) {}

void ServiceManager::tell(const std::string& lines) {
  if (send_) send_(lines);
}

void ServiceManager::ready(const std::string& status) {
  tell("READY=1\nSTATUS=" + status);
}

void ServiceManager::reloading() {
  tell("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(monotonic_us()));
}

void ServiceManager::stopping(const std::string& status) {
  tell("STOPPING=1\nSTATUS=" + status);
}

void ServiceManager::status(const std::string& status) {
  tell("STATUS=" + status);
}

void ServiceManager::feed(std::span<const std::uint64_t> turns, Time now) {
  if (watchdog_ == Duration::zero()) return;
  if (!turns_when_fed_.empty()) {
    if (now - fed_ < watchdog_ / kFeedsPerInterval) return;
    for (std::size_t lane = 0; lane < turns.size(); ++lane) {
      if (turns[lane] != turns_when_fed_[lane]) continue;
      if (!std::exchange(warned_, true))
        logger_->error("lane {} has not begun a turn for {} ms: the watchdog is not fed", lane,
                       std::chrono::duration_cast<std::chrono::milliseconds>(now - fed_).count());
      return;
    }
  }
  tell("WATCHDOG=1");
  turns_when_fed_.assign(turns.begin(), turns.end());
  fed_ = now;
  warned_ = false;
}

}  // namespace sluice::aggregator
