// What an epoch is measured by, as numbers that add up over ranks.
#pragma once

#include <array>
#include <cstddef>

#include <sluice/sluice.hpp>

namespace section_trainer {

enum Figure : std::size_t {
  kLoss,             ///< cross entropy summed over the training records, in nats
  kCorrect,          ///< held-out records classified correctly
  kBlocks,           ///< blocks of all exchanged tensors
  kBlocksSent,       ///< of them, sent by the rank
  kBlocksReceived,   ///< of them, non-zero on some rank
  kWireBytes,        ///< UDP payload in both directions
  kExchangeSeconds,  ///< in all_reduce of gradients
  kComputeSeconds,   ///< everything else
  kFigureCount
};
using Figures = std::array<double, kFigureCount>;

inline void add_statistics(const sluice::OpStatistics& op, Figures& figures) {
  figures[kBlocks] += double(op.blocks);
  figures[kBlocksSent] += double(op.blocks_sent);
  figures[kBlocksReceived] += double(op.blocks_received);
  figures[kWireBytes] += double(op.bytes_sent + op.bytes_received);
}

}  // namespace section_trainer
