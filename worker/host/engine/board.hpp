// What the ranks of one host tell each other, in memory that they share. Every word and every call
// has one writer, so that a process that dies or stops holds nothing. An engine reaches that memory
// through this class alone: the simulator replaces it.
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

/// Tensors so small travel in the calls.
inline constexpr std::size_t kInlineBytes = 256;

/// Where a tensor lies: in a region that its rank shares, or somewhere in its process.
struct Place {
  /// In place of a region's number: mates read and write the process's memory.
  static constexpr std::uint64_t kInProcess = ~std::uint64_t{0};

  std::uint64_t region = 0;  ///< 0: in none, and its elements pass through the rank's slots
  std::uint64_t offset = 0;  ///< in bytes, or the address in the process
  friend bool operator==(const Place&, const Place&) = default;
};

/// Bytes to be copied between this process and a mate's.
struct Transfer {
  std::byte* here = nullptr;
  std::uint64_t there = 0;  ///< an address in the mate's process, which may be wrong
  std::size_t bytes = 0;
};

/// What became of transfers.
enum class Copied : std::uint8_t {
  kAll,
  kNotMapped,    ///< the mate's process has no such memory, or lets nobody reach it any more
  kProcessGone,  ///< it has ended
};

/// The same on all ranks.
struct BoardSizes {
  std::uint64_t calls = 64;     ///< of ops that are kept
  std::uint64_t slots = 16;     ///< of each rank
  std::uint64_t blocks = 4096;  ///< pieces whose blocks are kept, at least as many as slots
  std::size_t slot_bytes = std::size_t{64} << 10;  ///< and of a piece, at most

  std::size_t slots_bytes() const { return slots * slot_bytes; }
};

/// An op as one rank has called it.
struct Call {
  // The same on all ranks, or they disagree.
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
  // Each rank's own.
  std::uint8_t tells_blocks = 0;     ///< which of a piece are not zero, as the caller knows
  std::uint8_t zeros_are_there = 0;  ///< in its output, where all ranks' blocks are zero
  Place input;                       ///< of the first element held
  Place output;                      ///< of the first one wanted
  std::uint64_t blocks = 0;          ///< of a small tensor, if it tells them
  std::uint16_t inline_bytes = 0;    ///< of a small tensor: all that is wanted of it, and no other
  std::array<std::byte, kInlineBytes> elements{};  ///< so many bytes of them are told
};

/// What each rank says of itself. A word never falls. Pieces are numbered over all ops of the job.
enum class Word : std::uint8_t {
  kGiven,     ///< mates can read its elements of all pieces below this number
  kSummed,    ///< of the pieces that it sums, all below this number are stored in every tensor
  kFinished,  ///< all ops below this number are complete here
  kOver,      ///< an Over
};
inline constexpr std::size_t kWords = 4;

/// Whether a rank takes part. From the end on it touches nobody's tensors.
enum class Over : std::uint8_t {
  kNo = 0,
  kLeft = 1,    ///< its farewell tells how
  kFailed = 2,  ///< its farewell tells why
};

class Board {
 public:
  virtual ~Board() = default;

  /// Our own word. Who reads it with word() then sees whatever we wrote before.
  virtual void set(Word word, std::uint64_t value) = 0;
  virtual std::uint64_t word(LocalRank of, Word word) const = 0;

  /// Our own call of an op takes the place of the one `calls` ops before.
  virtual void call(OpNumber op, const Call& call) = 0;
  virtual bool has_called(LocalRank rank, OpNumber op) const = 0;
  /// Of an op that it has called. A copy: what its rank writes meanwhile cannot be told.
  virtual Call called(LocalRank rank, OpNumber op) const = 0;

  /// To be told before kOver is set.
  virtual void tell_farewell(const AbortInfo& why) = 0;
  virtual AbortInfo farewell(LocalRank of) const = 0;

  /// So many bytes of a rank's region; null where it has none that reaches so far.
  virtual std::byte* bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) = 0;
  /// A rank's slot for a piece, which it takes from all the same piece modulo `slots`.
  virtual std::byte* slot(LocalRank of, std::uint64_t piece) = 0;
  /// Copies from a mate's process, and to it. If that fails, some of it may be done.
  virtual Copied read(LocalRank from, std::span<const Transfer> transfers) = 0;
  virtual Copied write(LocalRank to, std::span<const Transfer> transfers) = 0;

  /// Which blocks of a piece of ours are not zero: told before it is given, and kept until the
  /// piece `blocks` later.
  virtual void tell_blocks(std::uint64_t piece, std::uint64_t blocks) = 0;
  virtual std::uint64_t blocks(LocalRank of, std::uint64_t piece) const = 0;
  /// The same of the sums of a piece, by the rank that has summed it.
  virtual void tell_sums(std::uint64_t piece, std::uint64_t blocks) = 0;
  virtual std::uint64_t sums(LocalRank of, std::uint64_t piece) const = 0;

  /// How many blocks were not zero in all the pieces of the job that we have summed: of a rank's,
  /// or, as that of rank L, of the sums. Who finds a piece summed sees what was counted in it.
  virtual void tell_count(LocalRank of, std::uint64_t blocks) = 0;
  virtual std::uint64_t count(LocalRank by, LocalRank of) const = 0;
  /// The same of pieces in which a block of a rank's is zero and has a -0.0.
  virtual void tell_negative_zeros(LocalRank of, std::uint64_t pieces) = 0;
  virtual std::uint64_t negative_zeros(LocalRank by, LocalRank of) const = 0;

  /// Whoever has not ended yet is to reach our memory no more: a mate that was stopped may go on in
  /// the middle of what it was writing.
  virtual void part() = 0;
};

}  // namespace sluice::worker::host
