// Messages between the ranks of one host, by sockets. All ranks are of one build of the library, so
// a message is sent as it lies in memory.
#pragma once

#include <array>
#include <cstdint>

#include "common/protocol/abort_info.hpp"
#include "common/protocol/secret.hpp"
#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

/// The version of these messages, and of the Board's memory.
inline constexpr std::uint32_t kGroupVersion = 2;

enum class Kind : std::uint32_t {
  kHello = 1,
  kProof,     ///< with the memory in which the sender publishes
  kSlots,     ///< with the memory of its slots
  kRegion,    ///< with a region in which its tensors may lie
  kForget,    ///< the sender will not name a region any more
  kFormed,    ///< the sender has all its peers; says where its word for this peer is
  kReached,   ///< the outcome of the probe of that word: an errno, or 0
  kWake,      ///< something was published
  kFarewell,  ///< the sender could not join
};

struct Hello {
  Kind kind = Kind::kHello;
  std::uint32_t version = kGroupVersion;
  std::uint32_t job = 0;
  std::uint16_t rank = 0;  ///< in the job
  std::uint16_t world_size = 0;
  std::uint16_t block_elements = 0;
  std::uint16_t payload_bytes = 0;
  std::uint32_t has_secret = 0;
  std::uint64_t nonce = 0;
  BoardSizes sizes = {};
  std::array<char, 64> build = {};
};

/// Any message except the hello.
struct Message {
  Kind kind = Kind::kWake;
  std::uint64_t id = 0;  ///< of a region; or an address, or an errno
  Cookie proof = {};     ///< zeros where the job has no secret
  AbortInfo why = {};    ///< in a farewell
};

}  // namespace sluice::worker::host
