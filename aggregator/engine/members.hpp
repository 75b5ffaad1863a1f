// The members of a job that has formed: their tokens and addresses, their signs of liveness, who
// joins again in whose place, and leaving (rules 16, 17, 24 and 25 of docs/protocol.md).
//
// Two processes with one rank are told from a restarted rank by signs of liveness: whoever joins
// beside a member contends for its place, and loses it if the member proves to be alive after that.
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

  /// The candidates are members from now on, and are welcomed.
  void begin(const Formation::Agreement& agreed, const Candidates& candidates, Time now,
             ControlPackets& out);

  const Session& session() const { return session_; }
  bool resumed() const { return resumed_; }  ///< goes on with progress made elsewhere
  std::span<const Endpoint> endpoints() const { return endpoints_; }  ///< by rank
  const RankSet& present() const { return present_; }                 ///< not left

  /// The rank whose token the header has, if any.
  std::optional<Rank> find(const wire::MemberHeader& member) const {
    if (member.rank >= session_.ranks || member.token == 0) return std::nullopt;
    const Member& known = members_[member.rank];
    if (member.token != known.token && member.token != known.former_token) return std::nullopt;
    return Rank{member.rank};
  }
  /// Of a member that find() has found; null where packets carry no trailers.
  Opener* opener_of(const wire::MemberHeader& member) const {
    const Member& known = members_[member.rank];
    return (member.token == known.token ? known.opener : known.former_opener).get();
  }
  /// Whether any member has it, of whatever rank.
  bool has_token(std::uint64_t token) const;

  /// What a JOIN of one of these ranks is about.
  enum class JoinCase {
    kWaitsForOthers,    ///< it left, and comes back before the others have left
    kRepeated,          ///< its WELCOME was lost
    kStale,             ///< older than the one that made the member
    kAnotherProcess,    ///< names this generation, but was never welcomed to it; the member was
    kElsewhere,         ///< this generation went on at another aggregator
    kRejoins,           ///< a member of this generation in a new attempt
    kSpeaksOfOtherLife  ///< of none, or of one that is not this
  };
  JoinCase judge(const wire::Join& join) const;

  void welcome(Rank r, ControlPackets& out) const;
  /// Another process, or another attempt of the same one, takes the member's place. With a new
  /// token whatever was said of the old one, and recorded, is void.
  void rebind(Rank r, const Endpoint& to, const wire::Join& join, Time now, ControlPackets& out);
  /// The member's place is asked for by somebody else: its next signs of liveness decide. The
  /// caller sends PENDING.
  void contend(const Endpoint& from, const wire::Join& join, Time now);

  /// A packet of this member came in, with this token. One that was replaced is void from now on.
  void spoke(Rank r, std::uint64_t token) {
    Member& member = members_[r.value];
    member.spoke = true;
    if (token == member.token) member.former_token = 0;
  }
  bool has_spoken(Rank r) const { return members_[r.value].spoke; }
  void proved_liveness(Rank r, Time now) { members_[r.value].seen = now; }
  Duration silence_of(Rank r, Time now) const { return now - members_[r.value].seen; }
  /// Whether no KEEPALIVE of this number or a higher one came before, with the newest token: a
  /// recorded one says nothing.
  bool said_something_new(Rank r, const wire::KeepAlive& packet) {
    Member& member = members_[r.value];
    if (packet.member.token != member.token || packet.number <= member.keep_alive) return false;
    member.keep_alive = packet.number;
    return true;
  }
  void on_keep_alive(Rank r, const wire::KeepAlive& packet, Time now, ControlPackets& out);

  /// Where results go by multicast, and BEACONs that are due.
  Multicast& multicast() { return multicast_; }
  const Multicast& multicast() const { return multicast_; }
  void send_beacon(Time now, ControlPackets& out);

  /// Answers LEFT to a LEAVE with this token; the rank is out if it `may_leave`.
  void on_leave(Rank r, std::uint64_t token, Departure departure, bool may_leave,
                ControlPackets& out);
  /// Of a rank that leaves, or has left.
  Departure departure_of(Rank r) const { return members_[r.value].departure; }

  /// Why the job must end: a member is declared failed.
  std::optional<AbortInfo> failed(Time now) const;
  /// Who asks for the place of a silent member, and cannot simply have it. If the member was heard,
  /// the rank has restarted, and the job ends. If not, it has not begun: its place is free, but
  /// where one of the two holds progress made elsewhere, this formation counted on a JOIN from
  /// before that, and ends as if the aggregator had been killed. Who lost its place to a living
  /// member is refused.
  struct Contender {
    Endpoint endpoint;
    wire::Join join;
    Time since{};
    std::uint64_t keep_alive_at_start = 0;
  };
  std::optional<Contender> settle_contention(Time now, ControlPackets& out);
  /// To those who were never heard, when it is due: their WELCOME may be lost, and they may ask
  /// elsewhere by now.
  void repeat_welcomes(Time now, ControlPackets& out);
  /// A job with standbys may have been resumed here with a rank that went to another aggregator in
  /// the same moment. Such a formation does as if it had been killed: its ranks are refused and
  /// join again, all at the first aggregator that answers.
  Time all_must_have_spoken() const;
  Time next_deadline() const;
  void excuse_pause(Duration pause);

  /// The rank behind this local port, if it is present; nobody is there to be told any more.
  std::optional<AbortInfo> on_disconnect(std::uint16_t port_id, Time now);

  void abort_all(const AbortInfo& info, ControlPackets& out) const;
  /// Records what has become of the members, for those that missed the news.
  void leave_tombstones(const Tombstone& tombstone);

 private:
  struct Member {
    std::uint64_t token = 0;         // of every packet, as the next ones
    std::uint64_t former_token = 0;  // valid until the new one is used; 0: none
    std::shared_ptr<Opener> opener, former_opener;
    Time seen{};
    bool spoke = false;
    bool reported_missing = false;  // to the group, as an operator was told
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
  Time welcome_due_ = kNever;  // while some were never heard
  std::vector<Member> members_;
  std::vector<Endpoint> endpoints_;
  Multicast multicast_;
  RankSet present_;
};

}  // namespace sluice::aggregator
