// What a stream sends for the rounds of the op that runs there, and how it applies their results:
// blocks of a tensor (dense_rounds.hpp), or runs of pairs (keyed_rounds.hpp). The stream decides
// when to send for a round, and when to send again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"
#include "rounds/waiting_end.hpp"
#include "worker/engine/operation.hpp"

namespace sluice::worker {

using rounds::kNoRound;

/// What this rank had for a round, even if it did not send it. The blocks are kept as they were
/// sent.
struct Contribution {
  Round round = kNoRound;
  OpNumber op = 0;
  bool first = false;  ///< the op's first round
  bool owner = false;  ///< had a current block
  wire::Shape shape{};
  wire::Descriptor descriptor{};
  std::vector<wire::Column> columns = {};
  std::span<const std::byte> blocks{};  ///< this rank's, in the packet; empty: not written yet
  Buffer packet;                        ///< empty: it has none
  std::size_t bytes = 0;                ///< of them
  bool is_keyed = false;                ///< then the blocks are a run of pairs, and
  std::uint64_t horizon = 0;            ///< the round begins with this local key
  std::uint64_t following = kNoKey;     ///< and this one is the next behind the run;
  std::uint64_t next_horizon = 0;       ///< the result ended before this one
};

/// The source of one stream. All calls are about the op that began last, and the round that it
/// awaits; `mine` is what this rank has for that round.
class RoundSource {
 public:
  virtual ~RoundSource() = default;

  /// The op's first round.
  virtual void begin(Operation& op, StreamId stream, const Session& session) = 0;

  /// Whether this rank must contribute to the round. (All ranks contribute to an op's first.)
  virtual bool owns() const = 0;
  /// Whether the contribution can be read.
  virtual bool has_arrived(Operation& op) const = 0;
  /// Fills in the contribution and its size, and the blocks, if they were written before.
  virtual void describe(Operation& op, Contribution& mine) const = 0;
  /// Writes the blocks: mine.bytes of them.
  virtual void load(Operation& op, Contribution& mine, std::byte* out) = 0;
  /// The blocks were sent, and are in mine.packet.
  virtual void keep(const Contribution& mine) = 0;

  /// Whether a result is one that the round can end with, as far as this rank can tell.
  virtual bool fits(Operation& op, const Packet& packet, const Contribution& mine) const = 0;
  /// Takes the sums, and looks ahead.
  enum class Applied {
    kRefused,  ///< they cannot be those of this round
    kGoesOn,
    kDone,  ///< the op is, on this stream
  };
  virtual Applied apply(Operation& op, const Packet& packet, Contribution& mine) = 0;
};

}  // namespace sluice::worker
