// What one collective call cost, and what a communicator has done.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

/// What one op cost this rank. Where hosts of several ranks sum through aggregators, it is that of
/// the share of the tensor which the rank carries for its host: of blocks, bytes and packets, none
/// on a rank that carries nothing.
struct OpStatistics {
  std::chrono::nanoseconds duration{};  ///< from the call to completion
  std::uint64_t blocks = 0;             ///< of the tensor; on one host those of less than 1 KiB
                                        ///< may be counted together
  std::uint64_t blocks_sent = 0;        ///< own non-zero blocks
  std::uint64_t blocks_received = 0;    ///< blocks that are non-zero on some rank, and wanted here
  std::uint64_t packets_sent = 0;       ///< of every kind, for this op
  std::uint64_t packets_received = 0;
  std::uint64_t bytes_sent = 0;  ///< UDP payload; on one host own non-zero blocks
  std::uint64_t bytes_received = 0;
  std::uint64_t retransmissions = 0;  ///< DATA sent again, and PROBEs

  double density() const { return blocks == 0 ? 0.0 : double(blocks_sent) / double(blocks); }
  /// Of an op of which this rank wants all.
  double union_density() const {
    return blocks == 0 ? 0.0 : double(blocks_received) / double(blocks);
  }
};

/// What a communicator has done since it joined, messages included.
struct JobStatistics {
  std::uint64_t ops_completed = 0;
  std::uint64_t ops_failed = 0;
  std::uint64_t ops_pending = 0;  ///< now
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_received = 0;
  std::uint64_t packets_dropped = 0;    ///< of those received: of no use, or not valid
  std::uint64_t retransmissions = 0;    ///< DATA sent again, and PROBEs
  std::uint64_t narrowed_by_loss = 0;   ///< times that fewer streams ran, as many DATA were lost
  std::uint64_t narrowed_by_delay = 0;  ///< or as packets waited for long on their way
  std::uint64_t rejoins = 0;            ///< times that an aggregator was lost, and joined again
  std::uint64_t rounds_replayed = 0;    ///< for ranks that lacked their results then
};

}  // namespace sluice
