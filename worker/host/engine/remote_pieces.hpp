// Pieces of tensors that lie in no shared memory. Other ranks access them by their addresses in the
// process of their rank. The rank that sums a piece copies what the others hold of it into its own
// memory, and copies the sums back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker/host/engine/board.hpp"
#include "worker/host/engine/shares.hpp"

namespace sluice::worker::host {

/// The tensor of a peer, by addresses in its process.
struct RemoteTensor {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  bool zeros_are_there = false;  ///< its output holds zeros where all ranks' blocks are zero
};

class RemotePieces {
 public:
  /// Throws std::bad_alloc.
  RemotePieces(Board& board, std::size_t ranks, std::size_t piece_bytes);

  /// Copies these blocks of what the rank holds of a piece to elements_of(rank).
  Copied read(const Shares& shares, LocalRank rank, const RemoteTensor& tensor,
              const ElementRange& piece, std::uint64_t blocks);
  const std::byte* elements_of(LocalRank rank) const;

  /// Memory for the sums of a piece.
  std::byte* sums() const;
  /// Copies from the sums what the rank wants. All blocks that are not in `blocks` are zeros.
  Copied write(const Shares& shares, LocalRank rank, const RemoteTensor& tensor,
               const ElementRange& piece, std::uint64_t blocks, std::byte* sums);

 private:
  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };

  Board& board_;
  const std::size_t piece_bytes_;
  const std::size_t ranks_;
  // One piece for each rank, and one for the sums.
  const std::unique_ptr<std::byte, FreeAligned> memory_;
};

}  // namespace sluice::worker::host
