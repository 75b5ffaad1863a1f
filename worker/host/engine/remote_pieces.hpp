// Pieces of tensors that lie in no memory that their rank shares, and that its mates reach by their
// addresses in its process. Whoever sums a piece copies what mates hold of it into memory of its
// own, and the sums back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker/host/engine/board.hpp"
#include "worker/host/engine/shares.hpp"

namespace sluice::worker::host {

/// A mate's tensor, by addresses in its process.
struct RemoteTensor {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  bool zeros_are_there = false;  ///< in the output, where all ranks' blocks are zero
};

class RemotePieces {
 public:
  /// Throws std::bad_alloc.
  RemotePieces(Board& board, std::size_t ranks, std::size_t piece_bytes);

  /// Copies what the rank holds of a piece, of these blocks alone, to elements_of(rank).
  Copied read(const Shares& shares, LocalRank rank, const RemoteTensor& tensor,
              const ElementRange& piece, std::uint64_t blocks);
  const std::byte* elements_of(LocalRank rank) const;

  /// Where the sums of a piece may be.
  std::byte* sums() const;
  /// Copies of these what the rank wants. Others than these blocks are zeros.
  Copied write(const Shares& shares, LocalRank rank, const RemoteTensor& tensor,
               const ElementRange& piece, std::uint64_t blocks, std::byte* sums);

 private:
  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };

  Board& board_;
  const std::size_t piece_bytes_;
  const std::size_t ranks_;
  const std::unique_ptr<std::byte, FreeAligned> memory_;  // a piece of each rank, and of the sums
};

}  // namespace sluice::worker::host
