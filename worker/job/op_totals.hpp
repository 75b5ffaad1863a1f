// The cost of all ops of a communicator to this rank, for metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <sluice/statistics.hpp>

#include "common/base/latency_histogram.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

struct OpTotals {
  struct OfKind {
    std::uint64_t failed = 0;
    LatencyHistogram time;  ///< of completed ops, measured from the call
  };
  std::array<OfKind, static_cast<std::size_t>(wire::Collective::kSparseAllReduce) + 1> kinds;
  std::uint64_t blocks = 0;
  std::uint64_t blocks_sent = 0;
  std::uint64_t blocks_received = 0;
  std::uint64_t bytes_saved = 0;

  /// `block_bytes` is the size of a whole block as it travels. 0: it is unknown how much the zeros
  /// have saved.
  void add(wire::Collective kind, std::size_t block_bytes, bool has_failed,
           const OpStatistics& op) {
    OfKind& of = kinds[static_cast<std::size_t>(kind)];
    if (has_failed) {
      ++of.failed;
      return;
    }
    of.time.observe(op.duration);
    blocks += op.blocks;
    blocks_sent += op.blocks_sent;
    blocks_received += op.blocks_received;
    if (op.blocks > op.blocks_sent) bytes_saved += (op.blocks - op.blocks_sent) * block_bytes;
  }
};

}  // namespace sluice
