#include "worker/host/engine/remote_pieces.hpp"

#include <cstdlib>
#include <new>
#include <vector>

namespace sluice::worker::host {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::byte* allocate(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(
      std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes));
  if (!memory) throw std::bad_alloc();
  return memory;
}

std::vector<Transfer> transfers_of(const std::vector<Extent>& extents, std::byte* piece,
                                   std::uint64_t tensor) {
  std::vector<Transfer> transfers;
  transfers.reserve(extents.size());
  for (const Extent& e : extents)
    transfers.push_back({piece + e.in_piece, tensor + e.in_tensor, e.bytes});
  return transfers;
}

}  // namespace

void RemotePieces::FreeAligned::operator()(std::byte* memory) const {
  std::free(memory);
}

/// The allocation touches no page before a piece is read.
RemotePieces::RemotePieces(Board& board, std::size_t ranks, std::size_t piece_bytes)
    : board_(board),
      piece_bytes_(piece_bytes),
      ranks_(ranks),
      memory_(allocate((ranks + 1) * piece_bytes)) {}

const std::byte* RemotePieces::elements_of(LocalRank rank) const {
  return memory_.get() + rank * piece_bytes_;
}

std::byte* RemotePieces::sums() const {
  return memory_.get() + ranks_ * piece_bytes_;
}

Copied RemotePieces::read(const Shares& shares, LocalRank rank, const RemoteTensor& tensor,
                          const ElementRange& piece, std::uint64_t blocks) {
  const auto transfers = transfers_of(shares.held_extents(rank, piece, blocks),
                                      memory_.get() + rank * piece_bytes_, tensor.input);
  return transfers.empty() ? Copied::kAll : board_.read(rank, transfers);
}

Copied RemotePieces::write(const Shares& shares, LocalRank rank, const RemoteTensor& tensor,
                           const ElementRange& piece, std::uint64_t blocks, std::byte* sums) {
  const bool zeros_are_there = tensor.zeros_are_there && !shares.has_negative_zero(rank);
  const auto extents = shares.wanted_extents(rank, piece, zeros_are_there ? blocks : kAllBlocks);
  const auto transfers = transfers_of(extents, sums, tensor.output);
  return transfers.empty() ? Copied::kAll : board_.write(rank, transfers);
}

}  // namespace sluice::worker::host
