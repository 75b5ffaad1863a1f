// What one collective call cost.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

/// What one op cost this rank.
struct OpStatistics {
  std::chrono::nanoseconds duration{};  ///< from the call to completion
  std::uint64_t blocks = 0;             ///< blocks of the tensor
  std::uint64_t blocks_sent = 0;        ///< own non-zero blocks
  std::uint64_t blocks_received = 0;    ///< blocks that are non-zero on some rank, and wanted here
  std::uint64_t packets_sent = 0;       ///< of every kind, for this op
  std::uint64_t packets_received = 0;
  std::uint64_t bytes_sent = 0;  ///< UDP payload bytes, and blocks in shared memory
  std::uint64_t bytes_received = 0;
  std::uint64_t retransmissions = 0;  ///< DATA sent again, and PROBEs

  double density() const { return blocks == 0 ? 0.0 : double(blocks_sent) / double(blocks); }
  /// Of an op of which this rank wants all.
  double union_density() const {
    return blocks == 0 ? 0.0 : double(blocks_received) / double(blocks);
  }
};

}  // namespace sluice
