// This worker's membership at one aggregator: joining, keeping alive, leaving (rules 16, 17, 24 and
// 25 of docs/protocol.md). Control plane; its packets go out through ControlPackets.
//
// While it is not kIn its streams are suspended: they apply nothing, so that what JOIN claims
// stays true.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <sluice/error.hpp>

#include "common/base/endpoint.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "rounds/path.hpp"
#include "worker/engine/aggregator_addresses.hpp"
#include "worker/engine/config.hpp"
#include "worker/engine/join_attempt.hpp"
#include "worker/engine/liveness.hpp"

namespace sluice::worker {

class ShardMembership {
 public:
  enum class State { kIdle, kJoining, kIn, kLeft };

  /// Lane l of aggregator a of A is shard l * A + a; `aggregator`: where its lane 0 listens.
  ShardMembership(const EngineConfig& config, std::uint16_t shard, std::uint16_t aggregators,
                  const Endpoint& aggregator)
      : path(config.rto),
        config_(config),
        shard_(shard),
        aggregators_(aggregators),
        addresses_(config, static_cast<std::uint16_t>(shard % aggregators),
                   static_cast<std::uint16_t>(shard / aggregators), aggregator),
        protection_(config.integrity, config.secret, config.job) {}

  State state() const { return static_cast<State>(state_.index()); }
  bool in() const { return std::holds_alternative<In>(state_); }
  const Endpoint& aggregator() const { return addresses_.current(); }
  std::uint16_t shard() const { return shard_; }
  const Session& agreed() const { return agreed_; }  ///< once welcomed
  std::uint64_t token() const {                      ///< while kIn
    assert(in());
    return taken_in_.token;
  }
  const JobProtection& protection() const { return protection_; }
  /// We joined again and said that no round has ended: that must stay true.
  bool claims_no_progress() const {
    return attempt() != nullptr && attempt()->ask().is_again && attempt()->ask().no_progress;
  }
  /// Another aggregator than the one that took us in last is about to take us in.
  bool found_another(const wire::Challenge& packet) const {
    return attempt() != nullptr && packet.nonce == attempt()->ask().nonce &&
           packet.incarnation != taken_in_.incarnation;
  }
  /// "rank 1, 2 to join": for what this join waits.
  std::string waits_for() const;
  /// "aggregator 0 at 10.0.0.1 is of build 629700c", if its build is another than ours.
  std::optional<std::string> other_build() const;
  bool resume() const { return taken_in_.resume; }  ///< the last WELCOME asks to resynchronise

  /// Begins with the ports that the aggregator announced to the membership of another of its lanes.
  void send_from_ports_of(const ShardMembership& other) {
    addresses_.send_from_ports_of(other.addresses_);
  }

  /// Starts to join. `wanted` has what to ask for, and the generation held (0: none).
  void begin_join(const Session& wanted, bool no_progress, Time now, ControlPackets& out);
  /// Starts to join again: the aggregator does not know us any more, as it says itself
  /// (`refused_at_home`), or another has taken its place, or it sends nothing.
  void begin_rejoin(bool refused_at_home, bool no_progress, Time now, ControlPackets& out);
  /// A packet was not answered: asks with a KEEPALIVE. An aggregator answers it even if it does not
  /// know us any more. At most once in a time-out.
  void ask(Time now);
  /// A packet of a stream has come.
  void answered(Time now) { liveness_.stream_answered(now); }
  /// A stream was not answered for the aggregator's time-out. If no other stream was either, but
  /// KEEPALIVEs are, long packets are lost, and this rank cannot go on.
  void was_asked_in_vain(Time now);
  /// Whether no packet came for so long that the aggregator may be gone, or at another address.
  bool suspects(Time now) const;

  // What arrives. False: it is not for this membership, or not now.
  bool on_challenge(const Endpoint& from, const wire::Challenge& packet, Time now,
                    ControlPackets& out);
  bool on_pending(const wire::Pending& packet, Time now);
  /// Says that an aggregator speaks other versions; counts. on_time() tells when it is enough.
  bool on_versions(const wire::Versions& packet);
  bool on_welcome(const Endpoint& from, const wire::Welcome& packet,
                  Time now);  ///< true: joined now
  bool on_keep_alive_ack(const wire::KeepAliveAck& packet, Time now);
  bool on_beacon(const wire::Beacon& packet, Time now);
  bool is_refused(const Endpoint& from, const wire::Refused& packet) const;
  /// The refusal comes from the same aggregator that took us in: it does not know us any more.
  bool is_from_home(const wire::Refused& packet) const {
    return packet.incarnation == taken_in_.incarnation;
  }
  bool is_left(const wire::Left& packet) const;
  bool is_aborted(const wire::Abort& packet);  ///< counts some
  bool is_ours(const wire::DeliveryHeader& header) const {
    return is_of_this_epoch(header.epoch, header.delivery_token);
  }

  bool is_new_epoch() const {
    return taken_in_.new_epoch;
  }  ///< the last WELCOME began another epoch

  void on_link(std::uint16_t port_id, bool up, Time now);

  /// A sign of liveness.
  void received(Time now) { liveness_.received(now); }
  /// This time counts neither as silence of the aggregator nor as delay of the path to it. (Brief
  /// pauses count as silence: there may be so many that no silence would ever be noticed.)
  void excuse_pause(Duration pause, Time now) {
    if (pause > kSilence) liveness_.excuse(pause);
    path.window.watch_from(now);
  }

  /// Begins to leave. `needed`: others may need what we sent, so that an aggregator which does not
  /// know us must first take us in again. `why`: for LEAVE, if anything.
  void leave(bool needed, const std::optional<AbortInfo>& why, Time now, ControlPackets& out);
  bool leaving() const { return leaving_.has_value(); }
  void end() { state_ = Left{}; }
  /// Tells the aggregator once, with the reason if the packet can say it; ends the membership.
  void abort(const std::optional<AbortInfo>& why, ControlPackets& out);

  /// Sends what is due. An error: the aggregator is lost, or the job did not form.
  std::optional<Error> on_time(Time now, ControlPackets& out);
  Time next_deadline() const;

  rounds::Path path;  ///< to the aggregator

 private:
  static constexpr Duration kSilence = std::chrono::milliseconds(100);

  // The states, in the order of State.
  struct Idle {};
  using Joining = JoinAttempt;
  struct In {
    bool loses_long_packets = false;
  };
  struct Left {};
  /// Others may need what we sent until the aggregator has let us go.
  struct Leaving {
    std::optional<AbortInfo> why;
    Time since{};
    Time due = kNever;  ///< of the next LEAVE; it waits until an aggregator has taken us in
    Duration retry{};   ///< short: mostly others leave at the same time
  };
  /// What the last WELCOME says of the aggregator that sent it.
  struct TakenIn {
    std::uint64_t incarnation = 0;
    std::uint64_t token = 0;
    std::string build;
    bool resume = false;
    bool new_epoch = false;
  };

  /// What a CHALLENGE has shown of an aggregator here, in this attempt to join or before it.
  struct Proven {
    bool our_version = false;
    bool our_secret = false;
  };

  JoinAttempt* attempt() { return std::get_if<Joining>(&state_); }
  const JoinAttempt* attempt() const { return std::get_if<Joining>(&state_); }
  bool loses_long_packets() const { return in() && std::get<In>(state_).loses_long_packets; }

  wire::MemberHeader member_header(wire::MemberHeader header) const;
  wire::Hello hello(const JoinAttempt& attempt) const;
  wire::Join join(const JoinAttempt& attempt, const wire::Challenge& packet) const;
  void send_hello(JoinAttempt& attempt, Time now, ControlPackets& out);
  void start_joining(JoinAttempt::Ask ask, Time now, ControlPackets& out);
  void begin_to_send_leave(Duration first_wait, Time now);
  void send_leave(ControlPackets& out);
  void send_keep_alive(Time now, ControlPackets& out);
  bool may_join(const JoinAttempt& attempt, const Endpoint& from, const wire::Challenge& packet,
                ControlPackets& out);
  std::uint16_t shards_of(std::uint16_t lanes) const {
    return static_cast<std::uint16_t>(aggregators_ * lanes);
  }
  bool is_as_asked(const Session& wanted, const wire::Welcome& packet) const;
  bool is_protected_as_asked(const wire::Welcome& packet) const;
  Session session_of(const wire::Welcome& packet) const;
  bool is_of_this_epoch(std::uint64_t epoch, std::uint64_t delivery_token) const {
    return in() && epoch == agreed_.epoch && delivery_token == agreed_.delivery_token;
  }
  Duration suspicion() const;
  std::optional<Error> overdue(Time now) const;
  std::optional<Error> overdue(const JoinAttempt& attempt, Time now) const;
  Error lost(const std::string& why) const;
  std::string whom() const;
  std::string place() const;

  const EngineConfig& config_;
  const std::uint16_t shard_;
  const std::uint16_t aggregators_;
  AggregatorAddresses addresses_;
  JobProtection protection_;
  std::variant<Idle, Joining, In, Left> state_;
  std::optional<Leaving> leaving_;
  Session agreed_;
  TakenIn taken_in_;
  Liveness liveness_;
  bool link_is_down_ = false;  // of the port that leads to the aggregator
  Proven proven_;
};

}  // namespace sluice::worker
