// Reports the daemon's state to the service manager, as sd_notify(3) defines it: datagrams of lines
// NAME=VALUE to the socket that NOTIFY_SOCKET names. That protocol is stable and is described on
// one page, so libsystemd is not linked. Without the variable nothing is sent.
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
  /// Sends one datagram; a test replaces it.
  using Send = std::function<void(const std::string& lines)>;

  /// Throws Error kUnavailable if the socket is named and cannot be reached. Otherwise the manager
  /// would end the daemon later, without a reason in its log.
  ServiceManager(const config::Environment& environment, std::shared_ptr<spdlog::logger> logger);
  ServiceManager(Send send, Duration watchdog, std::shared_ptr<spdlog::logger> logger);

  bool is_there() const { return send_ != nullptr; }

  void ready(const std::string& status);
  void reloading();  ///< until `ready`
  void stopping(const std::string& status);
  void status(const std::string& status);

  /// Feeds the watchdog, if there is one and if every lane has begun a turn since the last time.
  /// `turns` has the number of turns of each lane. Call it many times in the watchdog's interval.
  void feed(std::span<const std::uint64_t> turns, Time now);

 private:
  void tell(const std::string& lines);

  Send send_;
  // If it is not fed for so long, the daemon is ended; 0: there is no watchdog.
  Duration watchdog_{};
  const std::shared_ptr<spdlog::logger> logger_;
  memory::Descriptor socket_;
  std::vector<std::uint64_t> turns_when_fed_;
  Time fed_{};
  bool warned_ = false;  // since it was last fed
};

}  // namespace sluice::aggregator
