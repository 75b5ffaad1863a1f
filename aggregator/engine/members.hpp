// The members of a job that has formed: their tokens and addresses, their signs of liveness, which
// process may take a member's place, and leaving (rules 16, 17, 24 and 25 of docs/protocol.md).
//
// Signs of liveness distinguish two processes with one rank from a restarted rank: a process that
// joins beside a member contends for its place, and loses if the member proves to be alive after
// that.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregator/engine/formation.hpp"
#include "aggregator/engine/job_record.hpp"
#include "aggregator/engine/multicast.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

class Members {
 public:
  explicit Members(JobRecord& record) : record_(record), config_(record.config) {}

  /// Makes the candidates members, and welcomes them.
  void begin(const Formation::Agreement& agreed, const Candidates& candidates, Time now,
             ControlPackets& out);

  const Session& session() const { return session_; }
  bool resumed() const { return resumed_; }  ///< the job goes on with progress made elsewhere
  std::span<const Endpoint> endpoints() const { return endpoints_; }  ///< by rank
  const RankSet& present() const { return present_; }                 ///< ranks that have not left

  /// The rank whose token the header has, if any.
  std::optional<Rank> find(const wire::MemberHeader& member) const {
    if (member.rank >= session_.ranks || member.token == 0) return std::nullopt;
    const Member& known = members_[member.rank];
    if (member.token != known.token && member.token != known.former_token) return std::nullopt;
    return Rank{member.rank};
  }
  /// The opener for packets of a member that find() has found; null where packets have no trailers.
  Opener* opener_of(const wire::MemberHeader& member) const {
    const Member& known = members_[member.rank];
    return (member.token == known.token ? known.opener : known.former_opener).get();
  }
  /// Whether a member of any rank has this token.
  bool has_token(std::uint64_t token) const;

  /// What a JOIN of one of these ranks is about.
  enum class JoinCase {
    kWaitsForOthers,    ///< the rank has left, and comes back before the others have left
    kRepeated,          ///< the WELCOME was lost
    kStale,             ///< it is older than the JOIN that made the member
    kAnotherProcess,    ///< it names this generation, but only the member was welcomed to it
    kElsewhere,         ///< this generation went on at another aggregator
    kRejoins,           ///< a member of this generation joins in a new attempt
    kSpeaksOfOtherLife  ///< it names no generation, or another one
  };
  JoinCase judge(const wire::Join& join) const;

  void welcome(Rank r, ControlPackets& out) const;
  /// Another process, or another attempt of the same process, takes the member's place. It gets a
  /// new token, so recorded packets with the old one are void.
  void rebind(Rank r, const Endpoint& to, const wire::Join& join, Time now, ControlPackets& out);
  /// Another process asks for the member's place. The member's next signs of liveness decide. The
  /// caller sends PENDING.
  void contend(const Endpoint& from, const wire::Join& join, Time now);

  /// A packet of this member has arrived with this token. If it is the new token, the former one is
  /// void from now on.
  void spoke(Rank r, std::uint64_t token) {
    Member& member = members_[r.value];
    member.spoke = true;
    if (token == member.token) member.former_token = 0;
  }
  bool has_spoken(Rank r) const { return members_[r.value].spoke; }
  void proved_liveness(Rank r, Time now) { members_[r.value].seen = now; }
  Duration silence_of(Rank r, Time now) const { return now - members_[r.value].seen; }
  /// Whether the KEEPALIVE has the newest token and a higher number than all before. A recorded
  /// KEEPALIVE proves nothing.
  bool said_something_new(Rank r, const wire::KeepAlive& packet) {
    Member& member = members_[r.value];
    if (packet.member.token != member.token || packet.number <= member.keep_alive) return false;
    member.keep_alive = packet.number;
    return true;
  }
  void on_keep_alive(Rank r, const wire::KeepAlive& packet, Time now, ControlPackets& out);

  /// The paths of multicast results, and when BEACONs are due.
  Multicast& multicast() { return multicast_; }
  const Multicast& multicast() const { return multicast_; }
  void send_beacon(Time now, ControlPackets& out);

  /// Handles a LEAVE with this token. A rank that `may_leave` leaves and gets LEFT; a rank that has
  /// left already gets LEFT again.
  void on_leave(Rank r, std::uint64_t token, Departure departure, bool may_leave,
                ControlPackets& out);
  /// How a rank leaves or has left.
  Departure departure_of(Rank r) const { return members_[r.value].departure; }

  /// Why the job must end, if a member is declared failed.
  std::optional<AbortInfo> failed(Time now) const;
  /// A process that asks for the place of a silent member, and cannot simply get it. If a packet of
  /// the member has arrived, the rank has restarted, and the job ends. If none has, the member has
  /// not begun, and its place is free. But if one of the two has made progress elsewhere, this
  /// formation relied on a JOIN from before that progress, and ends as if the aggregator had been
  /// killed. A process that contends with a living member is refused.
  struct Contender {
    Endpoint endpoint;
    wire::Join join;
    Time since{};
    std::uint64_t keep_alive_at_start = 0;
  };
  std::optional<Contender> settle_contention(Time now, ControlPackets& out);
  /// If due, repeats the WELCOMEs to members of which no packet has arrived. Their WELCOME may be
  /// lost, and they may try another aggregator by now.
  void repeat_welcomes(Time now, ControlPackets& out);
  /// When a resumed job must have received a packet of each member; kNever: it has, or is not
  /// resumed. A job with standbys may be resumed here with a rank that went to another aggregator
  /// at the same moment. Such a formation is abandoned: its ranks are refused, and all join again
  /// at the first aggregator that answers.
  Time all_must_have_spoken() const;
  Time next_deadline() const;
  void excuse_pause(Duration pause);

  /// A local port was removed. If a present rank was behind it, returns why the job must end; this
  /// rank gets no ABORT.
  std::optional<AbortInfo> on_disconnect(std::uint16_t port_id, Time now);

  void abort_all(const AbortInfo& info, ControlPackets& out) const;
  /// Records how the membership ended, for members that have not received the packet about it.
  void leave_tombstones(const Tombstone& tombstone);

 private:
  struct Member {
    std::uint64_t token = 0;         // every packet of the member has it
    std::uint64_t former_token = 0;  // also valid until `token` is used; 0: none
    std::shared_ptr<Opener> opener, former_opener;
    Time seen{};
    bool spoke = false;
    bool reported_missing = false;  // the last event says that it misses the group
    Departure departure = Departure::kByChoice;
    std::uint64_t nonce = 0;
    std::uint64_t serial = 0;
    std::uint64_t keep_alive = 0;
    std::optional<Contender> contender;
  };
  std::shared_ptr<Opener> opener_of(Rank r) const;
  void judge_group(Rank r, const wire::KeepAlive& packet, Time now);
  bool is_another_process(const wire::Join& join) const;
  bool went_on_elsewhere(const wire::Join& join) const;
  Time contention_ends(const Member& member) const;

  JobRecord& record_;
  const EngineConfig& config_;
  Session session_;
  bool resumed_ = false;
  Time formed_at_{};
  Time welcome_due_ = kNever;  // set until a packet of each member has arrived
  std::vector<Member> members_;
  std::vector<Endpoint> endpoints_;
  Multicast multicast_;
  RankSet present_;
};

}  // namespace sluice::aggregator
