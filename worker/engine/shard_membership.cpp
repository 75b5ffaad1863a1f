#include "worker/engine/shard_membership.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "common/base/limits.hpp"
#include "common/protocol/text_field.hpp"

namespace sluice::worker {
namespace {

constexpr unsigned kIpAndUdpBytes = 28;  // before a payload

std::string seconds_text(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace

std::string ShardMembership::whom() const {
  return config_.label().name() + ": " + place();
}

std::string ShardMembership::place() const {
  const std::size_t aggregator = shard_ % aggregators_;
  const std::size_t lane = shard_ / aggregators_;
  std::string who = "aggregator " + std::to_string(shard_);
  if (aggregator < config_.aggregator_names.size())
    who += " at " + config_.aggregator_names[aggregator];
  return lane == 0 ? who : who + ", lane " + std::to_string(lane);
}

// -------------------------------------------------------------------------------------- joining
void ShardMembership::begin_join(const Session& wanted, bool no_progress, Time now,
                                 ControlPackets& out) {
  liveness_.received(now);
  addresses_.begin(false, now);
  start_joining({.wanted = wanted, .nonce = config_.unique(), .no_progress = no_progress}, now,
                out);
}

void ShardMembership::begin_rejoin(bool refused_at_home, bool no_progress, Time now,
                                   ControlPackets& out) {
  assert(in());
  addresses_.begin(!refused_at_home, now);
  start_joining({.wanted = agreed_,
                 .nonce = config_.unique(),
                 .no_progress = no_progress,
                 .is_again = true,
                 .is_sent_away = refused_at_home},
                now, out);
}

void ShardMembership::start_joining(JoinAttempt::Ask ask, Time now, ControlPackets& out) {
  link_is_down_ = false;
  liveness_.pause();
  state_.emplace<Joining>(std::move(ask), config_.join_retry_min, now);
  send_hello(*attempt(), now, out);
}

wire::Hello ShardMembership::hello(const JoinAttempt& attempt) const {
  auto hello = wire::make<wire::Hello>(config_.job);
  hello.nonce = attempt.ask().nonce;
  hello.rank = config_.rank.value;
  hello.world_size = config_.ranks;
  return hello;
}

void ShardMembership::send_hello(JoinAttempt& attempt, Time now, ControlPackets& out) {
  if (const auto to = addresses_.next(now)) {
    out.push(*to, hello(attempt), protection_);
    const wire::Join* const join = attempt.join_from(to->local_udp_port);
    if (join != nullptr && addresses_.is_current(*to))
      out.push(*to, *join, protection_);  // it may be lost
  }
  if (leaving_) send_leave(out);  // it may have let us go already
  attempt.hello_sent(now, config_.join_retry_max);
}

/// Whether a CHALLENGE is for the port from which we are to join.
bool ShardMembership::may_join(const JoinAttempt& attempt, const Endpoint& from,
                               const wire::Challenge& packet, ControlPackets& out) {
  SourcePorts announced;
  std::ranges::copy(packet.source_ports, announced.begin());
  const auto next = addresses_.follow(from, announced);
  if (next == AggregatorAddresses::Next::kAskAgain)
    out.push(addresses_.current(), hello(attempt), protection_);
  return next == AggregatorAddresses::Next::kJoin;
}

bool ShardMembership::on_challenge(const Endpoint& from, const wire::Challenge& packet, Time now,
                                   ControlPackets& out) {
  JoinAttempt* const attempt = this->attempt();
  if (attempt == nullptr || packet.nonce != attempt->ask().nonce) return false;
  if (!addresses_.on_challenge(from, packet.incarnation, now)) return false;
  proven_ = {.our_version = true, .our_secret = protection_.has_secret()};
  if (!may_join(*attempt, from, packet, out)) return true;
  const wire::Join join = this->join(*attempt, packet);
  out.push(addresses_.current(), join, protection_);
  attempt->join_sent(join, addresses_.current().local_udp_port);
  return true;
}

wire::Join ShardMembership::join(const JoinAttempt& attempt, const wire::Challenge& packet) const {
  const Session& wanted = attempt.ask().wanted;
  auto join = wire::make<wire::Join>(config_.job);
  join.nonce = attempt.ask().nonce;
  join.incarnation = packet.incarnation;
  join.serial = packet.serial;
  join.generation = wanted.generation;
  join.epoch = agreed_.epoch;
  join.host = config_.host;
  join.rank = config_.rank.value;
  join.world_size = config_.ranks;
  join.streams = wanted.streams;
  join.block_elements = wanted.block_elements;
  join.payload_bytes = wanted.payload_bytes;
  join.shard = shard_;
  // A rank that holds a generation asks for its shards: an aggregator that has others refuses.
  join.shards = wanted.generation != 0 ? wanted.shards : shards_of(packet.lanes);
  join.history = wanted.history;
  join.flags =
      static_cast<std::uint8_t>((attempt.ask().no_progress ? wire::kJoinNoProgress : 0) |
                                (config_.authenticate_packets ? wire::kJoinAuthenticate : 0) |
                                (config_.encrypt_packets ? wire::kJoinEncrypt : 0));
  join.challenge = packet.challenge;
  set_text(join.build, config_.build);
  set_text(join.name, config_.label().announced_name);
  return join;
}

bool ShardMembership::on_pending(const wire::Pending& packet, Time now) {
  if (attempt() == nullptr || !attempt()->on_pending(packet)) return false;
  liveness_.received(now);
  return true;
}

/// Whether a WELCOME is as our JOIN asks. If the JOIN leaves something open, shard 0 decides it,
/// once for a generation. The size of blocks never changes: pending ops are cut to it.
bool ShardMembership::is_as_asked(const Session& wanted, const wire::Welcome& packet) const {
  const bool payload_fits = wanted.generation == 0 ? packet.payload_bytes <= wanted.payload_bytes
                                                   : packet.payload_bytes == wanted.payload_bytes;
  if (packet.block_elements != wanted.block_elements || !payload_fits) return false;
  if (shards_of(packet.lanes) > limits::kMaxShards) return false;
  if (wanted.generation != 0 && shards_of(packet.lanes) != wanted.shards) return false;
  if (shard_ != 0 && packet.generation != wanted.generation) return false;
  // A new generation may have been formed with our JOIN of before the one that we hold.
  const bool is_held = wanted.generation != 0 && packet.generation == wanted.generation;
  const std::uint16_t streams = is_held ? wanted.streams : config_.streams;
  const std::uint16_t history = is_held ? wanted.history : config_.history;
  return (streams == 0 || packet.streams == streams) && (history == 0 || packet.history == history);
}

bool ShardMembership::is_protected_as_asked(const wire::Welcome& packet) const {
  const bool authenticated = (packet.flags & wire::kWelcomeAuthenticate) != 0;
  const bool encrypted = (packet.flags & wire::kWelcomeEncrypt) != 0;
  if (authenticated ? !protection_.has_secret() : config_.authenticate_packets || encrypted)
    return false;
  return encrypted || !config_.encrypt_packets;
}

Session ShardMembership::session_of(const wire::Welcome& packet) const {
  return {.job = config_.job,
          .ranks = config_.ranks,
          .streams = packet.streams,
          .block_elements = packet.block_elements,
          .payload_bytes = packet.payload_bytes,
          .shard = shard_,
          .shards = shards_of(packet.lanes),
          .history = packet.history,
          .generation = packet.generation,
          .epoch = packet.epoch,
          .delivery_token = packet.delivery_token,
          .authenticated = (packet.flags & wire::kWelcomeAuthenticate) != 0,
          .encrypted = (packet.flags & wire::kWelcomeEncrypt) != 0,
          .has_hosts = (packet.flags & wire::kWelcomeHosts) != 0,
          .group = packet.group};
}

bool ShardMembership::on_welcome(const Endpoint& from, const wire::Welcome& packet, Time now) {
  if (attempt() == nullptr || packet.nonce != attempt()->ask().nonce) return false;
  if (packet.generation == 0 || packet.epoch == 0) return false;  // 0 is none, here and in JOINs
  if (!is_as_asked(attempt()->ask().wanted, packet) || !is_protected_as_asked(packet)) return false;
  if (!addresses_.on_welcome(from, packet.incarnation)) return false;
  taken_in_ = {.incarnation = packet.incarnation,
               .token = packet.token,
               .build = text_of(packet.build),
               .resume = (packet.flags & wire::kWelcomeResume) != 0,
               .new_epoch = packet.epoch != agreed_.epoch};
  agreed_ = session_of(packet);
  protection_.begin_session(agreed_, {config_.rank, packet.nonce, packet.token});
  state_ = In{};
  liveness_.begin(taken_in_.new_epoch,
                  std::chrono::milliseconds(std::max<std::uint16_t>(packet.keep_alive_ms, 1)), now);
  if (leaving_) begin_to_send_leave(Duration{}, now);
  return true;
}

/// An answer to a JOIN counts only while that join goes on: the aggregator that sends it may not be
/// the one that took us in. The answer "you do not share the job's secret" has no proof, and may be
/// to a damaged HELLO: it must come more than once. Any machine can send it, so it does not count
/// once an aggregator has shown that it shares the secret.
bool ShardMembership::is_aborted(const wire::Abort& packet) {
  const bool our_join =
      attempt() != nullptr && packet.nonce != 0 && packet.nonce == attempt()->ask().nonce;
  const auto not_shared = static_cast<std::uint16_t>(wire::AbortReason::kNotAuthenticated);
  if (packet.reason == not_shared)
    return our_join && attempt()->on_not_authenticated() && !proven_.our_secret;
  if (packet.nonce != 0) return our_join;
  if (packet.generation == 0) return false;
  if (in()) return packet.generation == agreed_.generation;
  return attempt() != nullptr && packet.generation == attempt()->ask().wanted.generation;
}

bool ShardMembership::on_versions(const wire::Versions& packet) {
  return attempt() != nullptr && attempt()->on_versions(packet);
}

std::string ShardMembership::waits_for() const {
  if (attempt() == nullptr || !attempt()->is_answered()) return place() + " to answer";
  const RankSet& absent = attempt()->absent();
  return absent.empty() ? "the job's earlier generation to end"
                        : "rank " + config_.label().text_of(absent) + " to join";
}

std::optional<std::string> ShardMembership::other_build() const {
  // A packet has room for a part of our build only: compares that.
  const std::string& build = taken_in_.build;
  const bool is_ours =
      build.empty() || config_.build.empty() || config_.build.substr(0, wire::kBuildBytes) == build;
  if (is_ours) return std::nullopt;
  return place() + " is of build " + build;
}

// -------------------------------------------------------------------------------------- being in
wire::MemberHeader ShardMembership::member_header(wire::MemberHeader header) const {
  header.token = taken_in_.token;
  header.rank = config_.rank.value;
  return header;
}

/// A recorded packet is not accepted: a token is replaced whenever the rank is taken in again, and
/// a KEEPALIVE that was acknowledged cannot be refused. (A refusal of an older KEEPALIVE than the
/// newest counts, too: packets may take longer than one interval.) Any aggregator that shares the
/// secret refuses a token that it does not know. Our session is over only if the one that took us
/// in refuses it, or one that listens now at its address. One at a standby's does not count.
bool ShardMembership::is_refused(const Endpoint& from, const wire::Refused& packet) const {
  const bool answers_us = in() && packet.token == taken_in_.token && packet.shard == shard_ &&
                          liveness_.may_be_refused(packet.number);
  const Endpoint& home = addresses_.current();
  const bool listens_there = packet.ipv4 == home.ipv4 && packet.udp_port == home.udp_port;
  return answers_us && addresses_.comes_from_current(from) &&
         (is_from_home(packet) || listens_there);
}

void ShardMembership::ask(Time now) {
  if (in()) liveness_.ask(now, path.rto.value());
}

void ShardMembership::was_asked_in_vain(Time now) {
  const bool nothing_came = now - liveness_.stream_answered_at() >= config_.aggregator_timeout;
  if (in() && !suspects(now) && nothing_came) std::get<In>(state_).loses_long_packets = true;
}

bool ShardMembership::on_keep_alive_ack(const wire::KeepAliveAck& packet, Time now) {
  return is_of_this_epoch(packet.epoch, packet.delivery_token) &&
         liveness_.on_acknowledgement(packet.number, now);
}

bool ShardMembership::on_beacon(const wire::Beacon& packet, Time now) {
  return is_of_this_epoch(packet.epoch, packet.delivery_token) &&
         liveness_.on_beacon(packet.number, now);
}

/// Several KEEPALIVEs were not answered, or the link is down and there is a standby.
bool ShardMembership::suspects(Time now) const {
  return in() && (now - liveness_.received_at() > suspicion() ||
                  (link_is_down_ && addresses_.has_standby()));
}

Duration ShardMembership::suspicion() const {
  return std::min<Duration>(3 * liveness_.interval(), config_.aggregator_timeout / 2);
}

/// A link that comes up may lead to a new incarnation of the aggregator: it is asked at once.
void ShardMembership::on_link(std::uint16_t port_id, bool up, Time now) {
  if (addresses_.current().port_id == port_id) link_is_down_ = !up;
  if (!up) return;
  if (in()) liveness_.ask(now);
  if (attempt() != nullptr) attempt()->ask_at(now);
}

// --------------------------------------------------------------------------------------- leaving
void ShardMembership::leave(bool needed, const std::optional<AbortInfo>& why, Time now,
                            ControlPackets& out) {
  assert(!leaving_);
  if (!in() && !needed) {
    end();
    return;
  }
  leaving_ = Leaving{.why = why, .since = now};
  if (!in()) return;  // once it has taken us in again
  send_leave(out);
  begin_to_send_leave(std::min<Duration>(config_.join_retry_min, path.rto.value()), now);
}

/// The first is due after this wait.
void ShardMembership::begin_to_send_leave(Duration first_wait, Time now) {
  leaving_->due = after(now, first_wait);
  leaving_->retry = std::min<Duration>(config_.join_retry_min, path.rto.value());
}

void ShardMembership::send_leave(ControlPackets& out) {
  auto leave = wire::make<wire::Leave>(config_.job);
  leave.member = member_header(leave.member);
  if (leaving_->why) set_cause(leave, *leaving_->why);
  out.push(addresses_.current(), leave, protection_);
}

bool ShardMembership::is_left(const wire::Left& packet) const {
  return leaving_ && packet.token == taken_in_.token;
}

void ShardMembership::abort(const std::optional<AbortInfo>& why, ControlPackets& out) {
  if (in()) {
    auto leave = wire::make<wire::Leave>(config_.job);
    leave.member = member_header(leave.member);
    leave.abort = 1;
    // That we do not share the secret was said without proof: no member would believe it.
    if (why && why->reason != wire::AbortReason::kNotAuthenticated) set_cause(leave, *why);
    out.push(addresses_.current(), leave, protection_);
  }
  end();
}

// ------------------------------------------------------------------------------------------ time
Error ShardMembership::lost(const std::string& why) const {
  const std::string unproven = attempt() != nullptr ? attempt()->unproven_text() : "";
  return Error(ErrorCode::kAggregatorLost, whom() + why + unproven);
}

/// For a rank that joins. If there are standbys, one of them may speak our version.
std::optional<Error> ShardMembership::overdue(const JoinAttempt& attempt, Time now) const {
  const std::string join_limit = seconds_text(config_.join_timeout);
  if (attempt.is_of_another_version() && !proven_.our_version && !addresses_.has_standby())
    return Error(ErrorCode::kFormationFailed, whom() + attempt.version_text());
  const bool is_late = now - attempt.since() > config_.join_timeout;
  if (!attempt.ask().is_again && !attempt.is_answered()) {
    if (!is_late) return std::nullopt;
    return lost(" did not answer within " + join_limit);
  }
  if (now - liveness_.received_at() > config_.aggregator_timeout) {
    const std::string limit = seconds_text(config_.aggregator_timeout);
    return lost(attempt.ask().is_sent_away
                    ? " has ended, and nothing took its place within " + limit
                    : " is declared failed: nothing was received for " + limit);
  }
  if (attempt.ask().is_again) {
    if (now - attempt.since() <= config_.join_timeout + config_.aggregator_timeout)
      return std::nullopt;
    return lost(" did not take this rank in again");
  }
  if (!is_late) return std::nullopt;
  return Error(ErrorCode::kFormationFailed,
               whom() + " still waits for " + waits_for() + " after " + join_limit);
}

std::optional<Error> ShardMembership::overdue(Time now) const {
  const std::string limit = seconds_text(config_.aggregator_timeout);
  if (attempt() != nullptr) {
    auto error = overdue(*attempt(), now);
    const bool may_be_leaving = attempt()->ask().is_again || attempt()->is_answered();
    if (error || !may_be_leaving) return error;
  }
  if (loses_long_packets())
    return Error(ErrorCode::kAggregatorLost,
                 whom() + " answers KEEPALIVEs, and nothing else for " + limit +
                     ": packets are lost for their length. Does every link on the way carry IP " +
                     "packets of " + std::to_string(agreed_.payload_bytes + kIpAndUdpBytes) +
                     " bytes, as SLUICE_MTU and port-mtu allow?");
  if (in() && now - liveness_.received_at() > config_.aggregator_timeout)
    return lost(" is declared failed: nothing was received for " + limit);
  if (leaving_ && now - leaving_->since > config_.aggregator_timeout)
    return Error(ErrorCode::kAggregatorLost,
                 whom() + " did not let this rank leave within " + limit);
  return std::nullopt;
}

void ShardMembership::send_keep_alive(Time now, ControlPackets& out) {
  auto packet = wire::make<wire::KeepAlive>(config_.job);
  packet.member = member_header(packet.member);
  liveness_.fill_next(packet, now);
  out.push(addresses_.current(), packet, protection_);
}

std::optional<Error> ShardMembership::on_time(Time now, ControlPackets& out) {
  if (state() == State::kIdle || state() == State::kLeft) return std::nullopt;
  if (auto error = overdue(now)) return error;
  if (JoinAttempt* const attempt = this->attempt()) {
    if (now >= attempt->due()) send_hello(*attempt, now, out);
    return std::nullopt;
  }
  const bool leaves_again = leaving_ && now >= leaving_->due;
  if (leaves_again) ask(now);
  if (now >= liveness_.due()) send_keep_alive(now, out);
  if (leaves_again) {
    send_leave(out);
    leaving_->retry = std::min<Duration>(2 * leaving_->retry, path.rto.value());
    leaving_->due = after(now, leaving_->retry);
  }
  return std::nullopt;
}

Time ShardMembership::next_deadline() const {
  switch (state()) {
    case State::kIdle:
    case State::kLeft:
      return kNever;
    case State::kJoining:
      return attempt()->due();
    case State::kIn:
      return leaving_ ? std::min(liveness_.due(), leaving_->due) : liveness_.due();
  }
  return kNever;
}

}  // namespace sluice::worker
