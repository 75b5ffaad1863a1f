// The ranks of a job: candidates that wait for it to form, and its members while it is active. This
// is control plane: it may allocate, and its packets go out through ControlPackets.
//
// A job forms (Formation), lives for one generation (Members), and forms again after it has ended.
// The end leaves tombstones (JobRecord), so that a rank which missed the ABORT or LEFT gets it
// again. This class moves the job from one state to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "aggregator/engine/formation.hpp"
#include "aggregator/engine/job_record.hpp"
#include "aggregator/engine/members.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

/// The REFUSED for a packet whose token is not known here. Only a KEEPALIVE gets one: it is long
/// enough, and its number shows to which KEEPALIVE the answer belongs. An unauthenticated peer may
/// have sent it, so the REFUSED contains our address: only ranks that joined there accept it.
std::optional<wire::Refused> refusal_of(const Endpoint& from, const Packet& packet,
                                        const EngineConfig& config);

class JobMembership {
 public:
  /// `buffers_claimed` counts those of all active jobs. It is read when this job forms.
  JobMembership(const EngineConfig& config, const Serials& serials, std::uint32_t job,
                const std::size_t& buffers_claimed)
      : record_(config, serials, job),
        buffers_claimed_(buffers_claimed),
        formation_(record_),
        members_(record_) {}
  JobMembership(const JobMembership&) = delete;
  JobMembership& operator=(const JobMembership&) = delete;

  bool active() const { return active_; }
  /// Whether there are no members and no candidates.
  bool idle() const { return !active_ && formation_.empty(); }
  const Members& members() const { return members_; }  ///< while active
  const Candidates& candidates() const { return formation_.candidates(); }
  const JobRecord& record() const { return record_; }

  /// The events since the last call of take_events(), in order.
  bool has_events() const { return record_.has_events(); }
  std::vector<JobEvent> take_events() { return record_.take_events(); }

  /// Handles a JOIN whose incarnation is ours. Sends PENDING, WELCOME or ABORT.
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now, ControlPackets& out);

  /// The rank whose token the header has, if any.
  std::optional<Rank> find(const wire::MemberHeader& member) const {
    return active_ ? members_.find(member) : std::nullopt;
  }
  /// Answers a packet whose sender find() does not know: with REFUSED, or again with what ended its
  /// job. The answer is never longer than the packet. If a member of another rank has the token,
  /// there is no answer: the sender is not that member, and the answer might reach it.
  void answer_unknown(const Endpoint& from, const Packet& packet, ControlPackets& out) const;

  void spoke(Rank r, std::uint64_t token) { members_.spoke(r, token); }
  void proved_liveness(Rank r, Time now) { members_.proved_liveness(r, now); }
  void on_keep_alive(Rank r, const wire::KeepAlive& packet, Time now, ControlPackets& out) {
    members_.on_keep_alive(r, packet, now, out);
  }
  bool said_something_new(Rank r, const wire::KeepAlive& packet) {
    return members_.said_something_new(r, packet);
  }
  Multicast& multicast() { return members_.multicast(); }  ///< while active

  /// Handles a LEAVE with this token. A rank that `may_leave`, as no other rank needs it any more,
  /// leaves and gets LEFT; a rank that has left already gets LEFT again.
  void on_leave(Rank r, std::uint64_t token, Departure departure, bool may_leave,
                ControlPackets& out);

  /// Handles the time-outs of liveness, contention and formation.
  void on_time(Time now, ControlPackets& out);
  Time next_deadline() const;

  /// This time does not count as silence of any rank.
  void excuse_pause(Duration pause);

  /// A local port was removed: the process behind it has ended.
  void on_disconnect(std::uint16_t port_id, Time now, ControlPackets& out);

  /// Ends the active generation or the formation, and sends ABORT to all its ranks. `reported_by`
  /// is the rank that reported the reason, if one did.
  void abort(const AbortInfo& info, ControlPackets& out, std::optional<Rank> reported_by = {});

 private:
  DropReason join_active(const Endpoint& from, const wire::Join& join, Time now,
                         ControlPackets& out);
  DropReason contend(const Endpoint& from, const wire::Join& join, Time now, ControlPackets& out);
  DropReason join_forming(const Endpoint& from, const wire::Join& join, Time now,
                          ControlPackets& out);
  void form(Time now, ControlPackets& out);
  void abandon_formation();
  void end(const Tombstone& tombstone, std::optional<Rank> reported_by = {});

  JobRecord record_;
  const std::size_t& buffers_claimed_;
  Formation formation_;  // on shards other than 0 also while an earlier generation is active
  Members members_;      // of the latest generation
  bool active_ = false;
};

}  // namespace sluice::aggregator
