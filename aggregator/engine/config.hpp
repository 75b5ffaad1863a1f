// Limits and times of one aggregator's engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/endpoint.hpp"
#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/multicast.hpp"
#include "common/base/source_ports.hpp"
#include "common/base/time.hpp"
#include "common/protocol/job_protection.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

struct EngineConfig {
  /// Of all aggregators' lanes. Lane l of aggregator a of A is shard l * A + a: the lanes of one
  /// number follow each other.
  std::uint16_t shard = 0;
  std::uint16_t shards = 1;
  std::uint16_t lanes = 1;                     ///< of each aggregator
  std::uint16_t streams = defaults::kStreams;  ///< of a job that asks for none
  std::uint16_t streams_max = limits::kMaxStreams;
  /// What ranks that are all on this machine have under way together is bound to this, by fewer
  /// streams: they share its caches.
  std::size_t local_window_bytes = std::size_t{5} << 19;
  std::uint8_t history = defaults::kHistory;        ///< of a job that asks for none; a power of two
  std::uint16_t payload_bytes = wire::kMaxPayload;  ///< largest UDP payload of our ports
  std::size_t jobs_max = limits::kFullJobs;         ///< forming or active at once
  std::size_t job_memory_bytes_max = std::size_t{1} << 30;  ///< engine state and held packets
  std::size_t buffers_max = ~std::size_t{0};  ///< packet buffers that all jobs may keep together
  GroupRange groups;                          ///< to which results go that most ranks lack
  Duration liveness_timeout = defaults::kLivenessTimeout;
  Duration formation_timeout = defaults::kFormationTimeout;

  bool integrity = false;  ///< packets carry a CRC32C, and from other machines they must

  /// A job's secret, or null if anybody may join it; empty: no job has one.
  std::function<std::shared_ptr<const Secret>(std::uint32_t job)> secret;
  bool authenticate_packets = false;  ///< in every session of a job that has a secret
  bool encrypt_packets = false;       ///< the same; authenticates them, too
  Key challenge_key{};                ///< unguessable, one per process: recognises own CHALLENGEs
  /// Answers to unauthenticated peers, per source.
  std::uint32_t reply_rate_limit = defaults::kReplyRateLimit;

  /// A rank that an op waits for that long is reported; 0: never.
  Duration straggler_warning = defaults::kStragglerWarning;

  /// From which ports a rank behind this endpoint is to send, so that a device brings its packets
  /// to the right lanes; empty: any will do.
  std::function<SourcePorts(const Endpoint& from, Rank rank)> source_ports;

  /// Where this lane listens, on the port of this number; empty: 0.
  struct Place {
    std::uint32_t ipv4 = 0;  ///< host byte order, as the next
    std::uint16_t udp_port = 0;
  };
  std::function<Place(std::uint16_t port_id)> place;

  std::string build;  ///< of this daemon, for people; empty: it is not told

  std::uint64_t incarnation = 0;  ///< unguessable, one per process

  /// Makes ids that nobody can guess; never 0.
  std::function<std::uint64_t()> unique;

  JobProtection protection_of(std::uint32_t job) const {
    return {integrity, secret ? secret(job) : nullptr, job};
  }

  /// How often workers are told to send KEEPALIVE: often enough that several may be lost.
  Duration keep_alive_interval() const {
    using std::chrono::milliseconds;
    return std::clamp<Duration>(liveness_timeout / 10, milliseconds(10), milliseconds(500));
  }
};

}  // namespace sluice::aggregator
