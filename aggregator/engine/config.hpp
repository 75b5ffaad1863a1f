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
#include "common/base/multicast_address.hpp"
#include "common/base/source_ports.hpp"
#include "common/base/time.hpp"
#include "common/protocol/job_protection.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

struct EngineConfig {
  /// Shards are the lanes of all aggregators. Lane l of aggregator a of A is shard l * A + a, so
  /// the lanes of one number follow each other.
  std::uint16_t shard = 0;
  std::uint16_t shards = 1;
  std::uint16_t lanes = 1;                     ///< of each aggregator
  std::uint16_t streams = defaults::kStreams;  ///< of a job that asks for none
  std::uint16_t streams_max = limits::kMaxStreams;
  /// Bounds the bytes that are in flight between the ranks of a job, if all are on this machine:
  /// such a job gets fewer streams, as its ranks share the machine's caches.
  std::size_t local_window_bytes = std::size_t{5} << 19;
  std::uint8_t history = defaults::kHistory;        ///< of a job that asks for none; a power of two
  std::uint16_t payload_bytes = wire::kMaxPayload;  ///< largest UDP payload of our ports
  std::size_t jobs_max = limits::kFullJobs;         ///< forming or active at once
  std::size_t job_memory_bytes_max = std::size_t{1} << 30;  ///< engine state and held packets
  std::size_t buffers_max = ~std::size_t{0};  ///< packet buffers that all jobs may keep together
  GroupRange groups;                          ///< get the results that most ranks lack
  Duration liveness_timeout = defaults::kLivenessTimeout;
  Duration formation_timeout = defaults::kFormationTimeout;

  bool integrity = false;  ///< we send a CRC32C, and demand it of packets from other machines

  /// A job's secret, or null if it has none; an empty function: no job has a secret.
  std::function<std::shared_ptr<const Secret>(std::uint32_t job)> secret;
  bool authenticate_packets = false;  ///< in every session of a job that has a secret
  bool encrypt_packets = false;       ///< in every session of such a job; also authenticates them
  Key challenge_key{};                ///< unguessable, one per process: recognises own CHALLENGEs
  /// Answers to unauthenticated peers, per source.
  std::uint32_t reply_rate_limit = defaults::kReplyRateLimit;

  /// A rank that an op waits for that long is reported; 0: never.
  Duration straggler_warning = defaults::kStragglerWarning;

  /// The ports from which a rank behind this endpoint must send, so that a device brings its
  /// packets to the right lanes; empty: the rank may use any port.
  std::function<SourcePorts(const Endpoint& from, Rank rank)> source_ports;

  /// The address of this lane on the port of this number; empty: the address is unknown, and 0.
  struct Place {
    std::uint32_t ipv4 = 0;  ///< host byte order, as the next
    std::uint16_t udp_port = 0;
  };
  std::function<Place(std::uint16_t port_id)> place;

  std::string build;  ///< of this daemon, for people; empty: it is not sent

  std::uint64_t incarnation = 0;  ///< unguessable, one per process

  /// Makes ids that an attacker cannot guess; never 0.
  std::function<std::uint64_t()> unique;

  JobProtection protection_of(std::uint32_t job) const {
    return {integrity, secret ? secret(job) : nullptr, job};
  }

  /// The interval of the workers' KEEPALIVEs. It is short enough that several of them may be lost.
  Duration keep_alive_interval() const {
    using std::chrono::milliseconds;
    return std::clamp<Duration>(liveness_timeout / 10, milliseconds(10), milliseconds(500));
  }
};

}  // namespace sluice::aggregator
