// A membership among the ranks of one host. Ranks may hold and want any elements of an op.
#pragma once

#include <vector>

#include "worker/host/engine/move_sequence.hpp"
#include "worker/host/engine/shares.hpp"
#include "worker/job/membership.hpp"

namespace sluice::worker::host {

class Sums : public sluice::Membership {
 public:
  using sluice::Membership::submit;
  /// Starts an op with these parts, by local rank. It has no pairs, and its tensors are in host
  /// memory.
  virtual OpNumber submit(const OpRequest& request, std::vector<Part> parts, Time now) = 0;
  /// Starts an op that consists of moves; they outlive its completion. To other ranks it is a
  /// sparse_all_reduce.
  virtual OpNumber submit(MoveSequence& moves, Time now) = 0;
};

}  // namespace sluice::worker::host
