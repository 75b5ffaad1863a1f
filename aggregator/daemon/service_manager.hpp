// Tells the service manager how the daemon is, as sd_notify(3) defines it: datagrams of lines
// NAME=VALUE to the socket that NOTIFY_SOCKET names. That protocol is stable and takes a page, so
// libsystemd is not linked for it. Without the variable nobody is told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/time.hpp"
#include "common/config/environment.hpp"
#include "common/log/logger.hpp"
#include "common/memory/descriptor.hpp"

namespace sluice::aggregator {

class ServiceManager {
 public:
  /// Sends one datagram; a test's takes the place of the socket's.
  using Send = std::function<void(const std::string& lines)>;

  /// Throws Error kUnavailable if the socket is named and cannot be reached: a manager that is told
  /// nothing would end the daemon later, and say no more than that.
  ServiceManager(const config::Environment& environment, std::shared_ptr<spdlog::logger> logger);
  ServiceManager(Send send, Duration watchdog, std::shared_ptr<spdlog::logger> logger);

  bool is_there() const { return send_ != nullptr; }

  void ready(const std::string& status);
  void reloading();  ///< until `ready`
  void stopping(const std::string& status);
  void status(const std::string& status);

  /// Feeds the watchdog, if there is one and every lane has begun a turn since it was fed last.
  /// `turns`: how many each has begun. To be called many times in the watchdog's interval.
  void feed(std::span<const std::uint64_t> turns, Time now);

 private:
  void tell(const std::string& lines);

  Send send_;
  Duration watchdog_{};  // 0: none. Not fed for so long, the daemon is ended
  const std::shared_ptr<spdlog::logger> logger_;
  memory::Descriptor socket_;
  std::vector<std::uint64_t> turns_when_fed_;
  Time fed_{};
  bool warned_ = false;  // since it was fed
};

}  // namespace sluice::aggregator
