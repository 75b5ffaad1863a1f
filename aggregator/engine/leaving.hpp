// How ranks leave a job (rule 25 of docs/protocol.md): the meaning of a LEAVE, and the POLLs that
// ask other ranks for their positions while a rank that wants to leave waits for them.
#pragma once

#include <cstdint>
#include <span>

#include "aggregator/engine/job_membership.hpp"
#include "aggregator/engine/stream.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

/// Why a rank ends the job for all: the reason in its LEAVE if it may give that one, else that this
/// rank has aborted.
AbortInfo cause_of(const wire::Leave& leave, Rank rank, const Session& session);

/// How a rank leaves, if it does not end the job for all.
Departure departure_of(const wire::Leave& leave);

/// Decides when the ranks of one job are polled, and which ranks are next.
class LeavePolls {
 public:
  /// A rank has asked to leave, and must wait.
  void on_wait(std::span<const Stream> streams, const JobMembership& membership, Time now,
               ControlPackets& out);
  /// No rank waits.
  void stop() { due_ = kNever; }

 private:
  void poll_some(std::span<const Stream> streams, const JobMembership& membership,
                 ControlPackets& out);

  Time due_ = kNever;       // set while a rank that wants to leave waits for others
  std::uint16_t next_ = 0;  // the rank to ask next
};

}  // namespace sluice::aggregator
