// What the members of a job and one of its aggregators have agreed for one epoch.
#pragma once

#include <cstdint>

#include "common/base/ids.hpp"

namespace sluice {

struct Session {
  std::uint32_t job = 0;
  std::uint16_t ranks = 0;           ///< N
  std::uint16_t streams = 0;         ///< S, over all shards
  std::uint16_t block_elements = 0;  ///< for ops that do not choose their own
  std::uint16_t payload_bytes = 0;   ///< largest UDP payload
  std::uint16_t shard = 0;
  std::uint16_t shards = 1;
  std::uint8_t history = 0;  ///< H
  std::uint64_t generation = 0;
  std::uint64_t epoch = 0;
  std::uint64_t delivery_token = 0;
  bool authenticated = false;  ///< every packet carries a trailer
  bool encrypted = false;      ///< packets with values are encrypted; implies authenticated
  bool has_hosts = false;      ///< some ranks say that they are on the same host
  std::uint32_t group = 0;     ///< IPv4 multicast group to which results may be sent; 0: none

  /// Streams that a shard serves: those with s % shards == shard.
  constexpr std::uint16_t streams_of(std::uint16_t of_shard) const {
    return static_cast<std::uint16_t>((streams + shards - 1 - of_shard) / shards);
  }
  constexpr bool serves(StreamId s) const { return s.value < streams && s.value % shards == shard; }
};

}  // namespace sluice
