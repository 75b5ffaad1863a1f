// The packet memory that one job claims when it forms. A limit holds for all jobs of the engine
// together.
#pragma once

#include <cstddef>
#include <optional>

#include "aggregator/engine/config.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

class JobMemory {
 public:
  /// `claimed_by_all` counts the packet buffers that all jobs of the engine have claimed.
  JobMemory(const EngineConfig& config, std::size_t& claimed_by_all)
      : config_(config), claimed_by_all_(claimed_by_all) {}
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  /// Why a session would take more than its job may, or more than other jobs have left.
  std::optional<AbortInfo> refusal(const Session& session) const;
  /// Claims what the session may take. refusal() must have returned nothing for it.
  void claim(const Session& session);
  void give_back();

  std::size_t buffers() const { return buffers_; }  ///< claimed

 private:
  const EngineConfig& config_;
  std::size_t& claimed_by_all_;
  std::size_t buffers_ = 0;
};

}  // namespace sluice::aggregator
