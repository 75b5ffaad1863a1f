// An op of a host's ranks that is made of several, which only move elements between them: what one
// moves depends on what the one before it has brought. To callers it is one op, with one number.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>

#include "common/base/ids.hpp"
#include "common/protocol/abort_info.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/host/engine/mate_memory.hpp"

namespace sluice::worker::host {

class MoveSequence {
 public:
  /// What is moved next, and the counts by which it is laid out.
  struct Move {
    OpRequest request;
    std::vector<std::uint64_t> counts;
  };

  virtual ~MoveSequence() = default;

  /// Before the first move, if at all: what the ranks read where it lies need not be moved.
  virtual void reach(MateMemory& mates) = 0;
  /// Of the op known by this number. Valid until the next call. Throws kUnavailable if there is no
  /// memory for it.
  virtual const Move& next(OpNumber number) = 0;
  /// It is done. Something: the ranks disagree.
  virtual std::optional<AbortInfo> end_move() = 0;
  virtual bool is_first() const = 0;  ///< next() was not called, or gave the first one
  virtual bool is_done() const = 0;
  /// Of the moves to come.
  virtual void set_timeout(const OpTimeout& timeout) = 0;
  virtual const OpRequest& request() const = 0;  ///< that it serves, with its time-out now

  /// Once done. An error: that the op ends with on this rank alone.
  virtual std::optional<Error> finish() = 0;
  /// At any time.
  virtual OpStatistics statistics() const = 0;
};

}  // namespace sluice::worker::host
