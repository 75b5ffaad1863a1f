// What ranks of one host say to each other by sockets, of one build of the library as they are: as
// they lie in memory.
#pragma once

#include <array>
#include <cstdint>

#include "common/protocol/abort_info.hpp"
#include "common/protocol/secret.hpp"
#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

/// Of these messages, and of the memory in which ranks tell each other.
inline constexpr std::uint32_t kGroupVersion = 2;

enum class Kind : std::uint32_t {
  kHello = 1,
  kProof,     ///< with what the sender tells
  kSlots,     ///< with its slots
  kRegion,    ///< with a region that its tensors may lie in
  kForget,    ///< a region will not be named any more
  kFormed,    ///< it has all its mates; where a word of its process is, for this mate
  kReached,   ///< what became of reading and writing that word: an errno, or 0
  kWake,      ///< something was told
  kFarewell,  ///< it could not join
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

/// Any other.
struct Message {
  Kind kind = Kind::kWake;
  std::uint64_t id = 0;  ///< of a region; or an address, or an errno
  Cookie proof = {};     ///< zeros where the job has no secret
  AbortInfo why = {};    ///< of a farewell
};

}  // namespace sluice::worker::host
