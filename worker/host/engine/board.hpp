// What the ranks of one host publish for each other in shared memory. Every word and every call has
// one writer, so a process that dies or stops holds no lock. An engine accesses that memory through
// this class only; the simulator replaces it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/ids.hpp"
#include "common/protocol/abort_info.hpp"

namespace sluice::worker::host {

/// A rank of the job on this host: 0 .. L-1, in the order of the job's ranks.
using LocalRank = std::uint16_t;

/// Tensors of at most this size travel in the calls.
inline constexpr std::size_t kInlineBytes = 256;

/// Where a tensor lies: in a region that its rank shares, or somewhere in its process.
struct Place {
  /// Stands in place of a region's number: the other ranks read and write the memory of the
  /// process.
  static constexpr std::uint64_t kInProcess = ~std::uint64_t{0};

  std::uint64_t region = 0;  ///< 0: in none, and its elements pass through the rank's slots
  std::uint64_t offset = 0;  ///< in bytes, or the address in the process
  friend bool operator==(const Place&, const Place&) = default;
};

/// Bytes to copy between this process and the process of a peer: another rank of the same host.
struct Transfer {
  std::byte* here = nullptr;
  std::uint64_t there = 0;  ///< an address in the peer's process, which may be wrong
  std::size_t bytes = 0;
};

/// The outcome of transfers.
enum class Copied : std::uint8_t {
  kAll,
  kNotMapped,    ///< the peer's process has no such memory, or does not permit access any more
  kProcessGone,  ///< the peer's process has ended
};

/// The same on all ranks.
struct BoardSizes {
  std::uint64_t calls = 64;  ///< of how many ops the calls are kept
  std::uint64_t slots = 16;  ///< of each rank
  /// For how many pieces the bitmaps of blocks are kept; at least as many as slots.
  std::uint64_t blocks = 4096;
  std::size_t slot_bytes = std::size_t{64} << 10;  ///< of one slot, and so the largest piece

  std::size_t slots_bytes() const { return slots * slot_bytes; }
};

/// An op as one rank has called it.
struct Call {
  // These must be the same on all ranks, or the ranks disagree.
  std::uint64_t element_count = 0;  ///< of the whole tensor
  std::uint64_t tag = 0;
  std::uint64_t rounding_seed = 0;
  std::uint16_t root = 0;
  std::uint16_t layout = 0;
  std::uint8_t collective = 0;
  std::uint8_t type = 0;
  std::uint8_t reduction = 0;
  std::uint8_t wire_type = 0;
  std::uint32_t block_elements = 0;
  // These may differ from rank to rank.
  std::uint8_t tells_blocks = 0;     ///< the caller says which blocks of a piece are not zero
  std::uint8_t zeros_are_there = 0;  ///< its output is zero where all ranks' blocks are
  Place input;                       ///< where its first held element lies
  Place output;                      ///< where its first wanted element lies
  std::uint64_t blocks = 0;          ///< a bitmap of a small tensor's blocks, if tells_blocks
  std::uint16_t inline_bytes = 0;    ///< of a small tensor that is wanted whole; otherwise 0
  std::array<std::byte, kInlineBytes> elements{};  ///< the first inline_bytes of them are published
};

/// The counters that each rank publishes. They never decrease. Pieces are numbered over all ops of
/// the job.
enum class Word : std::uint8_t {
  kGiven,     ///< peers can read its elements of all pieces below this number
  kSummed,    ///< all pieces that it sums and that lie below this number are stored in every tensor
  kFinished,  ///< all ops below this number are complete here
  kOver,      ///< holds a value of Over
};
inline constexpr std::size_t kWords = 4;

/// Whether a rank takes part. Once it does not, it accesses nobody's tensors.
enum class Over : std::uint8_t {
  kNo = 0,
  kLeft = 1,    ///< its farewell says how
  kFailed = 2,  ///< its farewell says why
};

class Board {
 public:
  virtual ~Board() = default;

  /// Sets our own word. A rank that reads the new value with word() sees everything that we wrote
  /// before.
  virtual void set(Word word, std::uint64_t value) = 0;
  virtual std::uint64_t word(LocalRank of, Word word) const = 0;

  /// Publishes our call of an op, in place of the one `calls` ops before.
  virtual void call(OpNumber op, const Call& call) = 0;
  virtual bool has_called(LocalRank rank, OpNumber op) const = 0;
  /// The call of an op that the rank has called. It is a copy, as the rank may write to the
  /// original meanwhile.
  virtual Call called(LocalRank rank, OpNumber op) const = 0;

  /// Must be published before kOver is set.
  virtual void tell_farewell(const AbortInfo& why) = 0;
  virtual AbortInfo farewell(LocalRank of) const = 0;

  /// The address of so many bytes of a rank's region; null if it has no region that reaches so far.
  virtual std::byte* bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) = 0;
  /// A rank's slot for a piece. All pieces with the same number modulo `slots` share it.
  virtual std::byte* slot(LocalRank of, std::uint64_t piece) = 0;
  /// Copies from the process of a peer, or to it. When that fails, a part may have been copied.
  virtual Copied read(LocalRank from, std::span<const Transfer> transfers) = 0;
  virtual Copied write(LocalRank to, std::span<const Transfer> transfers) = 0;

  /// Publishes which blocks of one of our pieces are not zero. This comes before the piece is
  /// given, and is kept until the piece that is `blocks` later.
  virtual void tell_blocks(std::uint64_t piece, std::uint64_t blocks) = 0;
  virtual std::uint64_t blocks(LocalRank of, std::uint64_t piece) const = 0;
  /// The same for the sums of a piece; the rank that has summed it publishes them.
  virtual void tell_sums(std::uint64_t piece, std::uint64_t blocks) = 0;
  virtual std::uint64_t sums(LocalRank of, std::uint64_t piece) const = 0;

  /// How many blocks were not zero in all pieces of the job that we have summed: blocks of one
  /// rank, or, for rank L, of the sums. A rank that sees a piece as summed also sees these counts
  /// of it.
  virtual void tell_count(LocalRank of, std::uint64_t blocks) = 0;
  virtual std::uint64_t count(LocalRank by, LocalRank of) const = 0;
  /// The same count, of pieces in which a rank has a block that is zero and contains -0.0.
  virtual void tell_negative_zeros(LocalRank of, std::uint64_t pieces) = 0;
  virtual std::uint64_t negative_zeros(LocalRank by, LocalRank of) const = 0;

  /// Takes our memory away from all ranks that have not ended: one that was stopped may continue in
  /// the middle of a write.
  virtual void part() = 0;
};

}  // namespace sluice::worker::host
