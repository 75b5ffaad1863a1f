// A membership among the ranks of one host, in which an op may be of any elements that its ranks
// hold and want.
#pragma once

#include <vector>

#include "worker/host/engine/move_sequence.hpp"
#include "worker/host/engine/shares.hpp"
#include "worker/job/membership.hpp"

namespace sluice::worker::host {

class Sums : public sluice::Membership {
 public:
  using sluice::Membership::submit;
  /// Starts an op of these parts, by local rank. Neither of pairs nor of tensors on a device.
  virtual OpNumber submit(const OpRequest& request, std::vector<Part> parts, Time now) = 0;
  /// Starts an op of several moves, which outlive its completion. To others it is a
  /// sparse_all_reduce.
  virtual OpNumber submit(MoveSequence& moves, Time now) = 0;
};

}  // namespace sluice::worker::host
