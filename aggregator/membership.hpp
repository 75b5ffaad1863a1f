// Who belongs to a job: joining, proving life, leaving, ending (rules 16-20, 24 and 25 of
// docs/protocol.md). Control plane: it may allocate, and its packets go out through ControlPackets.
//
// A job forms when all N ranks have joined, lives for one generation, and forms anew after it has
// ended. Serials, handed out with every CHALLENGE, order the joins: the newest of a rank wins, and
// all up to the mark of the last formation or end are void. What has ended leaves tombstones, so
// that a rank which missed the news is told again.
//
// Two processes with one rank are told from a restarted rank by signs of life: whoever joins beside
// a member contends for its place, and loses it if the member proves to be alive after that.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aggregator/config.hpp"
#include "aggregator/job_event.hpp"
#include "aggregator/serials.hpp"
#include "aggregator/tombstones.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

/// The REFUSED for a packet whose token nobody here knows; only a KEEPALIVE gets one: it is long
/// enough, and its number shows which moment the answer is of.
std::optional<wire::Refused> refusal_of(const Packet& packet, const EngineConfig& config);

class Membership {
 public:
  enum class State { kForming, kActive };

  /// `buffers_claimed`: by all jobs that are active, to be read when this one forms.
  Membership(const EngineConfig& config, const Serials& serials, std::uint32_t job,
             const std::size_t& buffers_claimed)
      : config_(config),
        serials_(serials),
        job_(job),
        buffers_claimed_(buffers_claimed),
        protection_(config.protection_of(job)),
        mark_(serials.last_void()) {}

  State state() const { return state_; }
  bool active() const { return state_ == State::kActive; }
  /// Nobody is in or on the way in.
  bool idle() const { return !active() && candidates_.empty(); }
  bool resumed() const { return resumed_; }  ///< while active: goes on with progress made elsewhere
  const Session& session() const { return session_; }                 ///< while active
  std::span<const Endpoint> endpoints() const { return endpoints_; }  ///< while active, by rank
  const RankSet& present() const { return present_; }                 ///< while active: not left

  /// What has happened since it was taken last, in order.
  bool has_events() const { return !events_.empty(); }
  std::vector<JobEvent> take_events() { return std::exchange(events_, {}); }

  /// A JOIN whose incarnation is ours. Sends PENDING, WELCOME or ABORT.
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now, ControlPackets& out);

  const JobProtection& protection() const { return protection_; }

  /// What this aggregator refuses whoever else has joined.
  static std::optional<AbortInfo> invalid(const wire::Join& join, const EngineConfig& config,
                                          const JobProtection& protection);

  /// The rank whose token the header has, if any.
  std::optional<Rank> find(const wire::MemberHeader& member) const;
  /// To the sender of a packet that find() does not know: REFUSED, or again what ended its job. A
  /// token that some member has gets no answer: whoever shows it under another rank is not that
  /// member, and the answer might reach it. Never longer than the packet.
  void answer_unknown(const Endpoint& from, const Packet& packet, ControlPackets& out) const;

  /// A packet of this member came in, with this token. One that was replaced is void from now on.
  void spoke(Rank r, std::uint64_t token) {
    Member& member = members_[r.value];
    member.spoke = true;
    if (token == member.token) member.former_token = 0;
  }
  void proved_life(Rank r, Time now) { members_[r.value].seen = now; }
  Duration silence_of(Rank r, Time now) const { return now - members_[r.value].seen; }
  void on_keep_alive(Rank r, std::uint64_t number, Time now, ControlPackets& out);

  /// Answers LEFT to a LEAVE with this token; `may_leave` tells whether no one needs the rank any
  /// more.
  void on_leave(Rank r, std::uint64_t token, bool may_leave, ControlPackets& out);

  /// Time-outs of liveness, contention and formation.
  void on_time(Time now, ControlPackets& out);
  Time next_deadline() const;

  /// Time that counts as nobody's silence.
  void excuse_pause(Duration pause);

  /// A local port went away with whoever was behind it.
  void on_hang_up(std::uint16_t port_id, Time now, ControlPackets& out);

  /// Ends the active life, or the forming, and tells all who are in it. `told_by`: which of them
  /// said so.
  void abort(const AbortInfo& info, ControlPackets& out, std::optional<Rank> told_by = {});

  /// Whether something that has ended would be told again.
  bool remembers() const { return !tombstones_.empty(); }
  /// Joins with serials up to this one are void.
  std::uint64_t mark() const { return mark_; }

 private:
  struct Candidate {
    Endpoint endpoint;
    wire::Join join;
    std::uint64_t first_nonce = 0;  // of the process that was here first
    std::uint64_t latest_serial = 0;
    Time since{};  // of the first JOIN with this nonce
    Time seen{};   // of the latest
  };
  struct Contender {
    Endpoint endpoint;
    wire::Join join;
    Time since{};
    std::uint64_t keep_alive_at_start = 0;
  };
  struct Member {
    std::uint64_t nonce = 0;
    std::uint64_t serial = 0;
    std::uint64_t token = 0;
    std::uint64_t former_token = 0;  // valid until the new one is used; 0: none
    std::uint64_t keep_alive = 0;
    Time seen{};
    bool spoke = false;
    std::optional<Contender> contender;
  };
  std::optional<AbortInfo> disagrees(const wire::Join& join) const;
  DropReason join_active(const Endpoint& from, const wire::Join& join, Time now,
                         ControlPackets& out);
  bool is_another_process(const wire::Join& join) const;
  bool went_on_elsewhere(const wire::Join& join) const;
  void rebind(Rank r, const Endpoint& to, const wire::Join& join, Time now, ControlPackets& out);
  DropReason contend(const Endpoint& from, const wire::Join& join, Time now, ControlPackets& out);
  DropReason join_forming(const Endpoint& from, const wire::Join& join, Time now,
                          ControlPackets& out);
  void end_broken_lives(ControlPackets& out);
  void end_generation(std::uint64_t generation, const AbortInfo& why, ControlPackets& out);
  const Candidate* holder() const;
  std::optional<Rank> stranger() const;
  AbortInfo why_not_formed(Time now) const;
  bool is_fresh(const Candidate& candidate, Time now) const;
  bool same_generation() const;
  Time forming_since() const;
  Time formation_ends() const;
  void forget_absentees(Time now);
  Time all_must_have_spoken() const;
  Time forgotten_at(const Candidate& candidate) const;
  void dismiss_candidates(const AbortInfo& info, ControlPackets& out);
  bool complete(Time now) const;
  std::uint16_t default_streams() const;
  std::size_t streams_with_room() const;
  void form(Time now, ControlPackets& out);
  void repeat_welcomes(Time now, ControlPackets& out);
  void welcome(Rank r, ControlPackets& out) const;
  void pend(const Endpoint& to, const wire::Join& join, ControlPackets& out) const;
  void refuse(const Endpoint& to, const wire::Join& join, const AbortInfo& info,
              ControlPackets& out);
  Time contention_ends(const Member& member) const;
  bool settle_contention(Time now, ControlPackets& out);
  bool is_token_of_member(std::uint64_t token) const;
  void dissolve();
  void end(const Tombstone& tombstone, std::optional<Rank> told_by = {});
  bool told_again(const Endpoint& from, const wire::Join& join, ControlPackets& out);

  const EngineConfig& config_;
  const Serials& serials_;
  const std::uint32_t job_;
  const std::size_t& buffers_claimed_;
  JobProtection protection_;
  State state_ = State::kForming;
  std::uint64_t mark_;

  // Forming; on shards other than 0 also while an earlier life is active.
  std::unordered_map<std::uint16_t, Candidate> candidates_;
  std::optional<std::uint64_t> conflict_serial_;  // newest when they were first seen to conflict

  // Active.
  Session session_;
  bool resumed_ = false;
  Time formed_at_{};
  Time welcome_due_ = kNever;  // while some were never heard
  std::vector<Member> members_;
  std::vector<Endpoint> endpoints_;
  RankSet present_;

  Tombstones tombstones_;
  std::vector<JobEvent> events_;
};

}  // namespace sluice::aggregator
