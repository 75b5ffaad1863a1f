// Limits and times of one communicator's engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "common/protocol/rto.hpp"

namespace sluice::worker {

struct EngineConfig {
  std::uint32_t job = 0;
  Rank rank{};
  std::uint16_t ranks = 1;
  std::uint16_t block_elements = 256;
  std::uint16_t streams = 0;                  ///< 0: the aggregator's
  std::uint8_t history = 0;                   ///< 0: the aggregator's
  std::uint16_t payload_bytes = 0;            ///< largest UDP payload our ports take
  std::vector<std::string> aggregator_names;  ///< by shard, for messages; may be empty

  Duration join_timeout = std::chrono::seconds(30);
  Duration aggregator_timeout = std::chrono::seconds(5);
  Duration join_retry_min = std::chrono::milliseconds(10);  ///< doubles up to the next
  Duration join_retry_max = std::chrono::milliseconds(250);
  RetransmissionTimeout::Limits rto;

  /// Makes ids that nobody can guess; never 0.
  std::function<std::uint64_t()> unique;

  /// Where a shard may be found after its aggregator fell silent: at its address, which another
  /// machine may have by now, or at a standby's. `attempt` counts the HELLOs of this rejoin from 0.
  /// Nothing: not reachable just now. May be empty: always where it was.
  std::function<std::optional<Endpoint>(std::uint16_t shard, unsigned attempt)> locate;
};

}  // namespace sluice::worker
