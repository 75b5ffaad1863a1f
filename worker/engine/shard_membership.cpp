#include "worker/engine/shard_membership.hpp"

#include <algorithm>
#include <cassert>

#include "common/base/limits.hpp"
#include "common/base/version.hpp"
#include "common/protocol/text_field.hpp"

namespace sluice::worker {
namespace {

constexpr unsigned kIpAndUdpBytes = 28;  // before a payload

/// What is said without proof, and of a HELLO that was damaged, too, must be said so many times.
constexpr unsigned kSayings = 3;

std::string seconds_text(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace

std::string ShardMembership::whom() const {
  return config_.known_as().name() + ": " + place();
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
  was_in_ = sent_away_ = false;
  wanted_ = wanted;
  heard_ = now;
  addresses_.begin(false, now);
  start_joining(no_progress, now, out);
}

void ShardMembership::begin_rejoin(bool refused_at_home, bool no_progress, Time now,
                                   ControlPackets& out) {
  assert(in());
  was_in_ = true;
  sent_away_ = refused_at_home;
  wanted_ = agreed_;
  addresses_.begin(!refused_at_home, now);
  start_joining(no_progress, now, out);
}

void ShardMembership::start_joining(bool no_progress, Time now, ControlPackets& out) {
  state_ = State::kJoining;
  no_progress_ = no_progress;
  nonce_ = config_.unique();
  serial_ = 0;
  answered_ = false;
  asked_.reset();
  absent_.clear();
  not_shared_ = versions_told_ = 0;
  link_down_ = loses_long_packets_ = false;
  joining_since_ = now;
  retry_ = config_.join_retry_min;
  keep_alive_due_ = kNever;
  send_hello(now, out);
}

wire::Hello ShardMembership::hello() const {
  auto hello = wire::make<wire::Hello>(config_.job);
  hello.nonce = nonce_;
  hello.rank = config_.rank.value;
  hello.world_size = config_.ranks;
  return hello;
}

void ShardMembership::send_hello(Time now, ControlPackets& out) {
  if (const auto to = addresses_.next(now)) {
    out.push(*to, hello(), protection_);
    if (asked_ && addresses_.is_current(*to) && to->local_udp_port == asked_from_)
      out.push(*to, *asked_, protection_);  // it may be lost
  }
  if (leaving_) send_leave(out);  // it may have let us go already
  hello_due_ = after(now, retry_);
  retry_ = std::min(2 * retry_, config_.join_retry_max);
}

/// Whether a CHALLENGE is for the port from which we are to join.
bool ShardMembership::may_join(const Endpoint& from, const wire::Challenge& packet,
                               ControlPackets& out) {
  SourcePorts told;
  std::ranges::copy(packet.source_ports, told.begin());
  const auto next = addresses_.follow(from, told);
  if (next == AggregatorAddresses::Next::kAskAgain)
    out.push(addresses_.current(), hello(), protection_);
  return next == AggregatorAddresses::Next::kJoin;
}

bool ShardMembership::on_challenge(const Endpoint& from, const wire::Challenge& packet, Time now,
                                   ControlPackets& out) {
  if (state_ != State::kJoining || packet.nonce != nonce_) return false;
  if (!addresses_.on_challenge(from, packet.incarnation, now)) return false;
  shared_ = protection_.has_secret();
  challenged_ = true;
  if (!may_join(from, packet, out)) return true;
  auto join = wire::make<wire::Join>(config_.job);
  join.nonce = nonce_;
  join.incarnation = packet.incarnation;
  join.serial = packet.serial;
  join.generation = wanted_.generation;
  join.epoch = agreed_.epoch;
  join.host = config_.host;
  join.rank = config_.rank.value;
  join.world_size = config_.ranks;
  join.streams = wanted_.streams;
  join.block_elements = wanted_.block_elements;
  join.payload_bytes = wanted_.payload_bytes;
  join.shard = shard_;
  // Whoever holds a generation asks for its shards: an aggregator that has others refuses.
  join.shards = wanted_.generation != 0 ? wanted_.shards : shards_of(packet.lanes);
  join.history = wanted_.history;
  join.flags =
      static_cast<std::uint8_t>((no_progress_ ? wire::kJoinNoProgress : 0) |
                                (config_.authenticate_packets ? wire::kJoinAuthenticate : 0) |
                                (config_.encrypt_packets ? wire::kJoinEncrypt : 0));
  join.challenge = packet.challenge;
  set_text(join.build, config_.build);
  set_text(join.name, config_.known_as().told);
  out.push(addresses_.current(), join, protection_);
  asked_ = join;
  asked_from_ = addresses_.current().local_udp_port;
  return true;
}

bool ShardMembership::on_pending(const wire::Pending& packet, Time now) {
  if (state_ != State::kJoining || packet.nonce != nonce_ || packet.serial <= serial_) return false;
  serial_ = packet.serial;
  answered_ = true;
  absent_ = RankSet::from_bytes(packet.absent);
  heard_ = now;
  return true;
}

/// Whether a WELCOME keeps to what our JOIN asks for. Where that leaves something open shard 0
/// decides, once for a generation. Blocks never change: ops that are pending have their size.
bool ShardMembership::is_as_asked(const wire::Welcome& packet) const {
  const bool payload_fits = wanted_.generation == 0 ? packet.payload_bytes <= wanted_.payload_bytes
                                                    : packet.payload_bytes == wanted_.payload_bytes;
  if (packet.block_elements != wanted_.block_elements || !payload_fits) return false;
  if (shards_of(packet.lanes) > limits::kMaxShards) return false;
  if (wanted_.generation != 0 && shards_of(packet.lanes) != wanted_.shards) return false;
  // A new generation may have been formed with our JOIN of before the one that we hold.
  const bool is_held = wanted_.generation != 0 && packet.generation == wanted_.generation;
  const std::uint16_t streams = is_held ? wanted_.streams : config_.streams;
  const std::uint16_t history = is_held ? wanted_.history : config_.history;
  return (streams == 0 || packet.streams == streams) && (history == 0 || packet.history == history);
}

bool ShardMembership::on_welcome(const Endpoint& from, const wire::Welcome& packet, Time now) {
  if (state_ != State::kJoining || packet.nonce != nonce_) return false;
  if (packet.generation == 0 || packet.epoch == 0) return false;  // 0 is none, here and in JOINs
  if (!is_as_asked(packet)) return false;
  if (shard_ != 0 && packet.generation != wanted_.generation) return false;
  const bool authenticated = (packet.flags & wire::kWelcomeAuthenticate) != 0;
  const bool encrypted = (packet.flags & wire::kWelcomeEncrypt) != 0;
  if (authenticated ? !protection_.has_secret() : config_.authenticate_packets || encrypted)
    return false;
  if (config_.encrypt_packets && !encrypted) return false;
  const Session session{.job = config_.job,
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
                        .authenticated = authenticated,
                        .encrypted = encrypted,
                        .has_hosts = (packet.flags & wire::kWelcomeHosts) != 0,
                        .group = packet.group};
  const bool new_epoch = packet.epoch != agreed_.epoch;
  if (!addresses_.on_welcome(from, packet.incarnation)) return false;
  new_epoch_ = new_epoch;
  agreed_ = session;
  protection_.begin_session(agreed_, {config_.rank, packet.nonce, packet.token});
  state_ = State::kIn;
  home_ = packet.incarnation;
  build_ = text_of(packet.build);
  resume_ = (packet.flags & wire::kWelcomeResume) != 0;
  token_ = packet.token;
  if (new_epoch_) {  // else the numbers must go on rising
    keep_alive_ = keep_alive_acknowledged_ = 0;
    beacon_ = 0;
    beacons_ = 0;
  }
  keep_alive_interval_ =
      std::chrono::milliseconds(std::max<std::uint16_t>(packet.keep_alive_ms, 1));
  heard_ = keep_alive_due_ = now;
  hello_due_ = kNever;
  if (leaving_) {
    leave_due_ = now;
    leave_retry_ = std::min<Duration>(config_.join_retry_min, rto.value());
  }
  return true;
}

/// An answer to a JOIN counts only while that join goes on: the aggregator that gives it may not be
/// the one that took us in. That we do not share the job's secret is said without proof, and of a
/// HELLO that was damaged, too: it must be said more than once. Anybody can say it, so it counts
/// for nothing once an aggregator has shown that it shares the secret.
bool ShardMembership::is_aborted(const wire::Abort& packet) {
  const bool joining = state_ == State::kJoining;
  const bool our_join = joining && packet.nonce != 0 && packet.nonce == nonce_;
  const auto not_shared = static_cast<std::uint16_t>(wire::AbortReason::kNotAuthenticated);
  if (packet.reason == not_shared) return our_join && ++not_shared_ >= kSayings && !shared_;
  if (packet.nonce != 0) return our_join;
  const std::uint64_t generation = in() ? agreed_.generation : wanted_.generation;
  return (in() || joining) && packet.generation != 0 && packet.generation == generation;
}

/// The same holds of another version. Where there are standbys, one of them may speak ours.
bool ShardMembership::on_versions(const wire::Versions& packet) {
  const bool other_than_ours = packet.lowest > wire::kVersion || packet.highest < wire::kVersion;
  if (state_ != State::kJoining || packet.nonce != nonce_ || packet.lowest > packet.highest ||
      !other_than_ours)
    return false;
  ++versions_told_;
  lowest_version_ = packet.lowest;
  highest_version_ = packet.highest;
  return true;
}

bool ShardMembership::is_of_another_version() const {
  return state_ == State::kJoining && versions_told_ >= kSayings && !challenged_ &&
         !addresses_.has_standby();
}

std::string ShardMembership::waits_for() const {
  if (!answered_) return place() + " to answer";
  return absent_.empty() ? "the job's earlier generation to end"
                         : "rank " + config_.known_as().text_of(absent_) + " to join";
}

std::optional<std::string> ShardMembership::other_build() const {
  // As much of ours as a packet has room for.
  const bool is_ours = build_.empty() || config_.build.empty() ||
                       config_.build.substr(0, wire::kBuildBytes) == build_;
  if (is_ours) return std::nullopt;
  return place() + " is of build " + build_;
}

std::string ShardMembership::version_text() const {
  const std::string theirs = lowest_version_ == highest_version_
                                 ? "version " + std::to_string(highest_version_)
                                 : "versions " + std::to_string(lowest_version_) + " to " +
                                       std::to_string(highest_version_);
  return " speaks " + theirs + " of the protocol, this library version " +
         std::to_string(wire::kVersion) + " (build " + build_id() +
         "): use the same release on both";
}

// -------------------------------------------------------------------------------------- being in
wire::MemberHeader ShardMembership::member_header(wire::MemberHeader header) const {
  header.token = token_;
  header.rank = config_.rank.value;
  return header;
}

/// What was recorded is void: a token is replaced whenever the rank is taken in again, and a
/// KEEPALIVE that was acknowledged cannot be refused. (Not the newest KEEPALIVE's number alone
/// counts: packets may take longer than from one to the next.) Any aggregator that shares the
/// secret refuses a token that it does not know, whoever asks: only who took us in, or listens now
/// where that did, tells by it that our session is over. One at a standby's address does not.
bool ShardMembership::is_refused(const Endpoint& from, const wire::Refused& packet) const {
  const bool answers_us = in() && packet.token == token_ && packet.shard == shard_ &&
                          packet.number > keep_alive_acknowledged_ && packet.number <= keep_alive_;
  const Endpoint& home = addresses_.current();
  const bool listens_there = packet.ipv4 == home.ipv4 && packet.udp_port == home.udp_port;
  return answers_us && addresses_.comes_from_current(from) &&
         (is_from_home(packet) || listens_there);
}

void ShardMembership::ask(Time now) {
  if (in() && now - keep_alive_sent_ >= rto.value()) keep_alive_due_ = now;
}

bool ShardMembership::on_keep_alive_ack(const wire::KeepAliveAck& packet, Time now) {
  if (!in() || packet.epoch != agreed_.epoch || packet.delivery_token != agreed_.delivery_token ||
      packet.number <= keep_alive_acknowledged_)
    return false;
  keep_alive_acknowledged_ = packet.number;
  heard_ = now;
  return true;
}

/// It shows that the group is heard, and nothing of the way on which all else comes: so it is no
/// sign of liveness. Where the aggregator may think that we do not hear, it learns at once that we
/// do.
bool ShardMembership::on_beacon(const wire::Beacon& packet, Time now) {
  if (!in() || packet.epoch != agreed_.epoch || packet.delivery_token != agreed_.delivery_token ||
      packet.number <= beacon_)
    return false;
  if (beacon_ == 0 || packet.number - beacon_ > wire::kBeaconsMissed) keep_alive_due_ = now;
  const std::uint64_t step = packet.number - beacon_;
  beacons_ = (step < wire::kBeaconsTold ? beacons_ << step : 0) | 1;
  beacon_ = packet.number;
  return true;
}

// --------------------------------------------------------------------------------------- leaving
void ShardMembership::leave(bool needed, const std::optional<AbortInfo>& why, Time now,
                            ControlPackets& out) {
  assert(!leaving_);
  if (!in() && !needed) {
    end();
    return;
  }
  leaving_ = true;
  why_leaving_ = why;
  leaving_since_ = now;
  if (!in()) return;  // once it has taken us in again
  send_leave(out);
  leave_retry_ = std::min<Duration>(config_.join_retry_min, rto.value());
  leave_due_ = after(now, leave_retry_);
}

/// Several KEEPALIVEs went unanswered, or the way to the aggregator is gone and there is another.
bool ShardMembership::suspects(Time now) const {
  return in() && (now - heard_ > suspicion() || (link_down_ && addresses_.has_standby()));
}

/// A link that comes up may lead to a new incarnation of the aggregator: it is asked at once.
void ShardMembership::on_link(std::uint16_t port_id, bool up, Time now) {
  if (addresses_.current().port_id == port_id) link_down_ = !up;
  if (!up) return;
  if (state_ == State::kIn) keep_alive_due_ = now;
  if (state_ == State::kJoining) hello_due_ = now;
}

Duration ShardMembership::suspicion() const {
  return std::min<Duration>(3 * keep_alive_interval_, config_.aggregator_timeout / 2);
}

void ShardMembership::send_leave(ControlPackets& out) {
  auto leave = wire::make<wire::Leave>(config_.job);
  leave.member = member_header(leave.member);
  if (why_leaving_) set_cause(leave, *why_leaving_);
  out.push(addresses_.current(), leave, protection_);
}

bool ShardMembership::is_left(const wire::Left& packet) const {
  return leaving_ && packet.token == token_;
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
/// What was said without proof, and not believed; it may be why.
std::string ShardMembership::unproven_text() const {
  if (versions_told_ != 0) return "; something there says, without proof, that it" + version_text();
  if (not_shared_ == 0) return "";
  return "; something there says, without proof, that this rank does not show the job's secret";
}

std::optional<Error> ShardMembership::overdue(Time now) const {
  if (is_of_another_version()) return Error(ErrorCode::kFormationFailed, whom() + version_text());
  const bool late = now - joining_since_ > config_.join_timeout;
  if (state_ == State::kJoining && !was_in_ && !answered_) {
    if (!late) return std::nullopt;
    return Error(
        ErrorCode::kAggregatorLost,
        whom() + " did not answer within " + seconds_text(config_.join_timeout) + unproven_text());
  }
  if (loses_long_packets_)
    return Error(ErrorCode::kAggregatorLost,
                 whom() + " answers KEEPALIVEs, and nothing else for " +
                     seconds_text(config_.aggregator_timeout) +
                     ": packets are lost for their length. Does every link on the way carry IP " +
                     "packets of " + std::to_string(agreed_.payload_bytes + kIpAndUdpBytes) +
                     " bytes, as SLUICE_MTU and port-mtu allow?");
  if (state_ == State::kJoining && sent_away_ && now - heard_ > config_.aggregator_timeout)
    return Error(ErrorCode::kAggregatorLost,
                 whom() + " has ended, and nothing took its place within " +
                     seconds_text(config_.aggregator_timeout) + unproven_text());
  if (now - heard_ > config_.aggregator_timeout)
    return Error(ErrorCode::kAggregatorLost,
                 whom() + " is declared failed: nothing was received for " +
                     seconds_text(config_.aggregator_timeout) + unproven_text());
  if (state_ == State::kJoining && was_in_ &&
      now - joining_since_ > config_.join_timeout + config_.aggregator_timeout)
    return Error(ErrorCode::kAggregatorLost,
                 whom() + " did not take this rank in again" + unproven_text());
  if (state_ == State::kJoining && !was_in_ && late) {
    return Error(ErrorCode::kFormationFailed, whom() + " still waits for " + waits_for() +
                                                  " after " + seconds_text(config_.join_timeout));
  }
  if (leaving_ && now - leaving_since_ > config_.aggregator_timeout)
    return Error(ErrorCode::kAggregatorLost, whom() + " did not let this rank leave within " +
                                                 seconds_text(config_.aggregator_timeout));
  return std::nullopt;
}

std::optional<Error> ShardMembership::on_time(Time now, ControlPackets& out) {
  if (state_ == State::kIdle || state_ == State::kLeft) return std::nullopt;
  if (auto error = overdue(now)) return error;
  if (state_ == State::kJoining) {
    if (now >= hello_due_) send_hello(now, out);
    return std::nullopt;
  }
  const bool leaves_again = leaving_ && now >= leave_due_;
  if (leaves_again) ask(now);
  if (now >= keep_alive_due_) {
    auto packet = wire::make<wire::KeepAlive>(config_.job);
    packet.member = member_header(packet.member);
    packet.number = ++keep_alive_;
    packet.heard = beacon_;
    packet.heard_of_last = beacons_;
    out.push(addresses_.current(), packet, protection_);
    keep_alive_sent_ = now;
    keep_alive_due_ = after(now, keep_alive_interval_);
  }
  if (leaves_again) {
    send_leave(out);
    leave_retry_ = std::min<Duration>(2 * leave_retry_, rto.value());
    leave_due_ = after(now, leave_retry_);
  }
  return std::nullopt;
}

Time ShardMembership::next_deadline() const {
  switch (state_) {
    case State::kIdle:
    case State::kLeft:
      return kNever;
    case State::kJoining:
      return hello_due_;
    case State::kIn:
      return leaving_ ? std::min(keep_alive_due_, leave_due_) : keep_alive_due_;
  }
  return kNever;
}

}  // namespace sluice::worker
