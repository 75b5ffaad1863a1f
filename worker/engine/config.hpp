// Limits and times of one communicator's engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/time.hpp"
#include "common/protocol/secret.hpp"
#include "rounds/rto.hpp"
#include "worker/engine/job_label.hpp"
#include "worker/engine/nonzero_map.hpp"

namespace sluice::worker {

struct EngineConfig {
  std::uint32_t job = 0;
  Rank rank{};
  std::uint16_t ranks = 1;
  std::uint16_t block_elements = defaults::kBlockElements;
  std::uint16_t streams = 0;                  ///< 0: the aggregator's
  std::uint8_t history = 0;                   ///< 0: the aggregator's
  std::uint16_t payload_bytes = 0;            ///< largest UDP payload our ports take
  std::vector<std::string> aggregator_names;  ///< for messages; may be empty
  std::optional<JobLabel> alias;              ///< for messages, too; none: the numbers above

  Duration join_timeout = defaults::kJoinTimeout;
  Duration aggregator_timeout = defaults::kAggregatorTimeout;
  Duration join_retry_min = std::chrono::milliseconds(10);  ///< doubles up to the next
  Duration join_retry_max = std::chrono::milliseconds(250);
  rounds::RetransmissionTimeout::Limits rto;
  Duration round_trip_max = defaults::kRoundTripMax;  ///< longer: packets wait in long queues
  SearchLimits search;

  bool integrity = false;  ///< packets carry a CRC32C, and from other machines they must
  std::shared_ptr<const Secret> secret;  ///< the job's, or null
  bool authenticate_packets = false;     ///< demands it of the session; needs the secret
  bool encrypt_packets = false;          ///< the same; authenticates them, too

  std::uint64_t host = 0;  ///< ranks of one host have the same; 0: it has none in common
  std::string build;       ///< of this library, for people; empty: it is not sent
  /// Makes ids that cannot be guessed; never 0.
  std::function<std::uint64_t()> unique;

  /// How many addresses each aggregator has, its standbys counted; empty: one each.
  std::vector<unsigned> addresses;

  /// Where an aggregator's lane 0 may be found: at its address number
  /// `attempt % addresses[aggregator]`, which another machine may have by now. Nothing: it
  /// cannot be reached now. Called before each HELLO; must not block. Empty: always the place that
  /// the engine got at first.
  std::function<std::optional<Endpoint>(std::uint16_t aggregator, unsigned attempt)> locate;

  JobLabel label() const { return alias.value_or(JobLabel{.job = std::to_string(job)}); }
};

}  // namespace sluice::worker
