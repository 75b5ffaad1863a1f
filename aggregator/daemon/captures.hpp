// Captures of frames that operators ask for, one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aggregator/daemon/lanes.hpp"
#include "aggregator/monitoring/limited_log.hpp"
#include "common/memory/descriptor.hpp"
#include "common/net/capture.hpp"

namespace sluice::aggregator {

class Captures {
 public:
  Captures(Lanes& lanes, std::shared_ptr<LimitedLog> peer_log)
      : lanes_(lanes), peer_log_(std::move(peer_log)) {}
  ~Captures() { lanes_.capture(nullptr); }
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

  /// Both return what operators read, and throw sluice::Error kInvalidArgument.
  std::string begin(memory::Descriptor file, std::uint64_t frames, std::uint32_t seconds,
                    std::uint32_t frame_bytes);
  std::string stop();

  /// The work of one control period: closes a capture that has ended.
  void look_after();

  /// Of the latest one, if there was any.
  const std::optional<net::Capture::Counters>& latest() const { return latest_; }

 private:
  struct UnderWay {
    std::shared_ptr<net::Capture> capture;
    bool is_released = false;  // the lanes were told to let go of it
  };

  Lanes& lanes_;
  const std::shared_ptr<LimitedLog> peer_log_;
  std::optional<UnderWay> under_way_;
  std::optional<net::Capture::Counters> latest_;
};

}  // namespace sluice::aggregator
