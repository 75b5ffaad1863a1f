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

#include <sluice/error.hpp>

#include "common/base/endpoint.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "rounds/congestion_window.hpp"
#include "rounds/recent_rounds.hpp"
#include "rounds/rto.hpp"
#include "worker/engine/aggregator_addresses.hpp"
#include "worker/engine/config.hpp"

namespace sluice::worker {

class ShardMembership {
 public:
  enum class State { kIdle, kJoining, kIn, kLeft };

  /// Lane l of aggregator a of A is shard l * A + a; `aggregator`: where its lane 0 listens.
  ShardMembership(const EngineConfig& config, std::uint16_t shard, std::uint16_t aggregators,
                  const Endpoint& aggregator)
      : rto(config.rto),
        config_(config),
        shard_(shard),
        aggregators_(aggregators),
        addresses_(config, static_cast<std::uint16_t>(shard % aggregators),
                   static_cast<std::uint16_t>(shard / aggregators), aggregator),
        protection_(config.integrity, config.secret, config.job) {}

  State state() const { return state_; }
  bool in() const { return state_ == State::kIn; }
  const Endpoint& aggregator() const { return addresses_.current(); }
  std::uint16_t shard() const { return shard_; }
  const Session& agreed() const { return agreed_; }  ///< once welcomed
  std::uint64_t token() const {                      ///< while kIn
    assert(in());
    return token_;
  }
  std::uint64_t nonce() const { return nonce_; }
  const JobProtection& protection() const { return protection_; }
  /// We joined again and said that no round has ended: that must stay true.
  bool claims_no_progress() const { return state_ == State::kJoining && was_in_ && no_progress_; }
  /// Another aggregator than the one that took us in is about to.
  bool found_another(const wire::Challenge& packet) const {
    return state_ == State::kJoining && packet.nonce == nonce_ && packet.incarnation != home_;
  }
  /// "rank 1, 2 to join": for what this join waits.
  std::string waits_for() const;
  /// "aggregator 0 at 10.0.0.1 is of build 629700c": the one that took us in, if it is not of ours.
  std::optional<std::string> other_build() const;
  bool resume() const { return resume_; }  ///< the last WELCOME asks to resynchronise

  /// Begins with the ports that the aggregator has told another of its lanes' memberships.
  void send_from_ports_of(const ShardMembership& other) {
    addresses_.send_from_ports_of(other.addresses_);
  }

  /// Starts to join. `wanted` has what to ask for, and the generation held (0: none).
  void begin_join(const Session& wanted, bool no_progress, Time now, ControlPackets& out);
  /// Starts to join again: the aggregator does not know us any more, as it says itself
  /// (`refused_at_home`), or another has taken its place, or it is not heard.
  void begin_rejoin(bool refused_at_home, bool no_progress, Time now, ControlPackets& out);
  /// Something that was sent went unanswered: asks with a KEEPALIVE, which an aggregator answers
  /// also if it does not know us any more. At most once in a time-out.
  void ask(Time now);
  /// Something of a stream has come.
  void answered(Time now) { stream_answered_at_ = now; }
  /// A stream was not answered for the aggregator's time-out. If no other was either, and
  /// KEEPALIVEs are, packets are lost for their length, and this rank cannot go on.
  void was_asked_in_vain(Time now) {
    loses_long_packets_ |=
        in() && !suspects(now) && now - stream_answered_at_ >= config_.aggregator_timeout;
  }
  /// So long nothing was heard that the aggregator may be gone, or be somewhere else.
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
  /// A refusal comes from the very aggregator that took us in: it does not know us any more.
  bool is_from_home(const wire::Refused& packet) const { return packet.incarnation == home_; }
  bool is_left(const wire::Left& packet) const;
  bool is_aborted(const wire::Abort& packet);  ///< counts some
  bool is_ours(const wire::DeliveryHeader& header) const {
    return in() && header.epoch == agreed_.epoch && header.delivery_token == agreed_.delivery_token;
  }

  bool is_new_epoch() const { return new_epoch_; }  ///< the last WELCOME began another epoch

  void on_link(std::uint16_t port_id, bool up, Time now);

  /// A sign of liveness.
  void heard(Time now) { heard_ = now; }
  /// Time that counts as no silence of the aggregator, and no delay of the path to it. (Of brief
  /// pauses there may be so many that no silence would ever be noticed.)
  void excuse_pause(Duration pause, Time now) {
    if (pause > kSilence) heard_ += pause;
    window.watch_from(now);
  }

  /// Begins to leave. `needed`: others may need what we sent, so that an aggregator which does not
  /// know us must first take us in again. `why`: for LEAVE, if anything.
  void leave(bool needed, const std::optional<AbortInfo>& why, Time now, ControlPackets& out);
  bool leaving() const { return leaving_; }
  void end() { state_ = State::kLeft; }
  /// Tells the aggregator once, and why as far as the packet can say; the membership is over.
  void abort(const std::optional<AbortInfo>& why, ControlPackets& out);

  /// Repeats what is due. An error: the aggregator is lost, or the job did not form.
  std::optional<Error> on_time(Time now, ControlPackets& out);
  Time next_deadline() const;

  // The path to the aggregator.
  RetransmissionTimeout rto;
  RecentRounds recent;
  CongestionWindow window;

 private:
  static constexpr Duration kSilence = std::chrono::milliseconds(100);

  wire::MemberHeader member_header(wire::MemberHeader header) const;
  wire::Hello hello() const;
  void send_hello(Time now, ControlPackets& out);
  void start_joining(bool no_progress, Time now, ControlPackets& out);
  void send_leave(ControlPackets& out);
  bool may_join(const Endpoint& from, const wire::Challenge& packet, ControlPackets& out);
  std::uint16_t shards_of(std::uint16_t lanes) const {
    return static_cast<std::uint16_t>(aggregators_ * lanes);
  }
  bool is_as_asked(const wire::Welcome& packet) const;
  Duration suspicion() const;
  std::optional<Error> overdue(Time now) const;
  std::string whom() const;
  std::string place() const;
  bool is_of_another_version() const;
  std::string version_text() const;
  std::string unproven_text() const;

  const EngineConfig& config_;
  const std::uint16_t shard_;
  const std::uint16_t aggregators_;
  AggregatorAddresses addresses_;
  JobProtection protection_;
  State state_ = State::kIdle;
  bool was_in_ = false;  // rejoining
  bool leaving_ = false;
  std::optional<AbortInfo> why_leaving_;
  bool resume_ = false;
  bool new_epoch_ = false;
  Session wanted_;
  bool no_progress_ = true;
  Session agreed_;
  std::uint64_t nonce_ = 0;
  std::optional<wire::Join> asked_;  // the newest of this attempt, where addresses_ stands
  std::uint16_t asked_from_ = 0;     // our UDP port, for which alone it is good
  std::uint64_t serial_ = 0;         // newest PENDING
  std::uint64_t token_ = 0;
  std::uint64_t keep_alive_ = 0;
  std::uint64_t keep_alive_acknowledged_ = 0;
  std::uint64_t beacon_ = 0;   // newest heard in this epoch
  std::uint32_t beacons_ = 0;  // bit i: beacon_ - i was heard
  Time keep_alive_sent_{};
  Duration keep_alive_interval_{};
  Duration retry_{};
  Time stream_answered_at_{};  // any, last
  bool loses_long_packets_ = false;
  bool link_down_ = false;      // of the port that leads to the aggregator
  unsigned not_shared_ = 0;     // times we were told so of the secret, in this join
  bool shared_ = false;         // it is: a CHALLENGE has proven it
  unsigned versions_told_ = 0;  // times we were told so of another version, in this join
  std::uint8_t lowest_version_ = 0, highest_version_ = 0;  // that we were told last
  bool challenged_ = false;                                // ever: an aggregator speaks our version
  RankSet absent_;
  bool answered_ = false;
  bool sent_away_ = false;  // by the aggregator that took us in
  std::uint64_t home_ = 0;  // incarnation of the aggregator that took us in
  std::string build_;       // of that one
  Time joining_since_{};
  Time heard_{};
  Time hello_due_ = kNever;
  Time keep_alive_due_ = kNever;
  Time leave_due_ = kNever;
  Duration leave_retry_{};  // short: mostly others leave at the same time
  Time leaving_since_ = kNever;
};

}  // namespace sluice::worker
