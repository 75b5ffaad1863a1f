// An op among the ranks of a host that consists of several moves. Each only moves elements between
// ranks, and depends on what the one before it has brought. For callers it is one op with one
// number.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>

#include "common/base/ids.hpp"
#include "common/protocol/abort_info.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/host/engine/peer_access.hpp"

namespace sluice::worker::host {

class MoveSequence {
 public:
  /// The next move, and the counts by which it is laid out.
  struct Move {
    OpRequest request;
    std::vector<std::uint64_t> counts;
  };

  virtual ~MoveSequence() = default;

  /// Called before the first move, or not at all. Data that other ranks can read where it lies is
  /// not moved.
  virtual void reach(PeerAccess& peers) = 0;
  /// The next move of the op with this number. Valid until the next call. Throws kUnavailable if
  /// there is no memory for it.
  virtual const Move& next(OpNumber number) = 0;
  /// Called when the move is done. Returns a value if the ranks disagree.
  virtual std::optional<AbortInfo> end_move() = 0;
  virtual bool is_first() const = 0;  ///< next() was not called, or has returned the first move
  virtual bool is_done() const = 0;
  /// Sets the time-out of the moves that follow.
  virtual void set_timeout(const OpTimeout& timeout) = 0;
  virtual const OpRequest& request() const = 0;  ///< the caller's request, with its time-out now

  /// Called once the op is done. An error ends the op on this rank only.
  virtual std::optional<Error> finish() = 0;
  /// May be called at any time.
  virtual OpStatistics statistics() const = 0;
};

}  // namespace sluice::worker::host
