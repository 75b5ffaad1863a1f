#include "worker/loop/aggregator_membership.hpp"

#include <algorithm>
#include <utility>

#include "common/base/random_id.hpp"
#include "common/base/version.hpp"

namespace sluice {
namespace {

/// How often it is checked whether an aggregator can be reached.
constexpr std::chrono::milliseconds kFindPeriod{1};
/// The deadline of a pair of ranks: the failure of its job ends the wait.
constexpr Duration kAsLongAsTheJobLives = std::chrono::hours(24 * 365 * 100);

std::uint16_t streams_of_pair(const Session& session) {
  const std::uint32_t channels = std::uint32_t{session.ranks} * (session.ranks - 1u);
  const auto share = static_cast<std::uint16_t>(std::clamp<std::uint32_t>(
      limits::kStreamsOfAllChannels / channels, 1, limits::kMaxChannelStreams));
  return std::min(session.streams, std::max(share, session.shards));
}

}  // namespace

AggregatorMembership::AggregatorMembership(Progress& progress, Attachment& attachment,
                                           const JobOptions& options, worker::JobLabel label,
                                           std::shared_ptr<const Secret> secret, std::uint64_t host,
                                           Time now)
    : progress_(progress),
      attachment_(attachment),
      options_(options),
      label_(std::move(label)),
      secret_(std::move(secret)),
      host_(host),
      config_(config_of_job()),
      deadline_(after(now, options.join_timeout)) {}

AggregatorMembership::AggregatorMembership(const AggregatorMembership& of,
                                           worker::EngineConfig config)
    : progress_(of.progress_),
      attachment_(of.attachment_),
      options_(of.options_),
      label_(of.label_),
      secret_(of.secret_),
      host_(of.host_),
      config_(std::move(config)),
      aggregators_(of.aggregators_),
      deadline_(kNever) {}

AggregatorMembership::~AggregatorMembership() {
  if (reserved_) progress_.release_buffers(*reserved_);
}

worker::EngineConfig AggregatorMembership::config_of_job() const {
  worker::EngineConfig config;
  config.job = options_.job;
  config.alias = label_;
  config.rank = Rank{options_.rank};
  config.ranks = options_.world_size;
  config.block_elements = options_.block_elements;
  config.streams = options_.streams;
  config.history = options_.history;
  config.payload_bytes = attachment_.payload_bytes();
  config.join_timeout = options_.join_timeout;
  config.aggregator_timeout = options_.aggregator_timeout;
  config.rto.min = options_.retransmit_timeout_min;
  config.round_trip_max = options_.round_trip_max;
  config.integrity = attachment_.computes_integrity();
  config.secret = secret_;
  config.authenticate_packets = options_.authenticate_packets || options_.encrypt_packets;
  config.encrypt_packets = options_.encrypt_packets;
  config.host = host_;
  config.build = build_id();
  config.unique = random_id;
  config.locate = [&attachment = attachment_](std::uint16_t shard, unsigned attempt) {
    return attachment.locate(shard, attempt, Progress::now());
  };
  for (std::size_t shard = 0; shard < attachment_.aggregators(); ++shard) {
    config.aggregator_names.push_back(attachment_.name_of(shard));
    config.addresses.push_back(attachment_.addresses_of(shard));
  }
  return config;
}

worker::EngineConfig AggregatorMembership::config_of(const SomeRanks& some) const {
  const Session& session = engine_->session();
  worker::EngineConfig config = config_of_job();
  config.job = some.job;
  config.alias = some.alias;
  config.rank = some.rank;
  config.ranks = some.ranks;
  config.host = 0;
  config.block_elements = session.block_elements;
  config.payload_bytes = session.payload_bytes;
  config.authenticate_packets = session.authenticated;
  config.encrypt_packets = session.encrypted;
  return config;
}

std::unique_ptr<AggregatorMembership> AggregatorMembership::join_beside(const SomeRanks& some,
                                                                        Time now) const {
  std::unique_ptr<AggregatorMembership> joined(new AggregatorMembership(*this, config_of(some)));
  joined->join(now);
  return joined;
}

/// Messages between two ranks travel in packets.
std::unique_ptr<Membership> AggregatorMembership::join_pair(const Pair& pair, Time now) {
  const Rank end{static_cast<std::uint16_t>(rank() == pair.first ? 0 : 1)};
  worker::EngineConfig config =
      config_of({.job = pair.job, .alias = pair.alias, .rank = end, .ranks = 2});
  config.streams = streams_of_pair(engine_->session());
  config.history = limits::kChannelHistory;
  config.join_timeout = kAsLongAsTheJobLives;
  std::unique_ptr<AggregatorMembership> joined(new AggregatorMembership(*this, std::move(config)));
  joined->reserved_ = progress_.reserve_buffers(
      label_.name() + ": a channel from rank " + std::to_string(pair.first.value) + " to rank " +
          std::to_string(pair.second.value),
      joined->config_.streams, joined->config_.history, secret_ != nullptr);
  joined->join(now);
  return joined;
}

// --------------------------------------------------------------------------------------- joining
/// Looks for every aggregator: its link must be up and its address known.
void AggregatorMembership::find_aggregators(Time now) {
  if (now < next_look_) return;
  next_look_ = after(now, kFindPeriod);
  while (aggregators_.size() < attachment_.aggregators()) {
    const auto endpoint = attachment_.find(aggregators_.size(), now);
    if (!endpoint) break;
    aggregators_.push_back(*endpoint);
  }
  if (aggregators_.size() == attachment_.aggregators()) return join(now);
  if (now < deadline_) return;
  const std::size_t missing = aggregators_.size();
  fail(Error(ErrorCode::kAggregatorLost, label_.name() + ": aggregator " + std::to_string(missing) +
                                             " at " + attachment_.name_of(missing) +
                                             " is unreachable within " +
                                             std::to_string(options_.join_timeout.count()) + " ms" +
                                             attachment_.why_unreachable(missing)));
}

void AggregatorMembership::join(Time now) {
  engine_ = std::make_unique<worker::Engine>(config_, aggregators_);
  engine_->notify_begun(notifies_begun_);
  engine_->start(now, attachment_.io());
}

/// Reserves packet buffers for what the session may keep and have under way.
void AggregatorMembership::reserve(const std::string& whose) {
  try {
    const Session& session = engine_->session();
    reserved_ =
        progress_.reserve_buffers(whose, session.streams, session.history, secret_ != nullptr);
  } catch (const Error& error) {
    engine_->abort(error, attachment_.io(),
                   AbortInfo{.reason = wire::AbortReason::kNoMemory, .rank_a = config_.rank});
  }
}

std::string AggregatorMembership::waits_for() const {
  if (engine_) return engine_->waits_for();
  const std::size_t missing = aggregators_.size();
  return "aggregator " + std::to_string(missing) + " at " + attachment_.name_of(missing) +
         " to be reachable";
}

Membership::State AggregatorMembership::state() const {
  if (!engine_) return failure_ ? State::kFailed : has_left_ ? State::kLeft : State::kJoining;
  switch (engine_->state()) {
    case worker::Engine::State::kJoining:
      return State::kJoining;
    case worker::Engine::State::kActive:
      return State::kActive;
    case worker::Engine::State::kLeaving:
      return State::kLeaving;
    case worker::Engine::State::kLeft:
      return State::kLeft;
    case worker::Engine::State::kFailed:
      break;
  }
  return State::kFailed;
}

const std::optional<AbortInfo>& AggregatorMembership::abort_info() const {
  static const std::optional<AbortInfo> nothing;
  return engine_ ? engine_->abort_info() : nothing;
}

// ------------------------------------------------------------------------------------------- ops
OpNumber AggregatorMembership::submit(const worker::OpRequest& request,
                                      std::span<const std::uint64_t> /*counts*/, Time now) {
  return engine_->submit(request, now, attachment_.io());
}

void AggregatorMembership::notify_begun(bool is_wanted) {
  notifies_begun_ = is_wanted;
  if (engine_) engine_->notify_begun(is_wanted);
}

// --------------------------------------------------------------------------------------- the end
void AggregatorMembership::fail(const Error& error) {
  if (!failure_) failure_ = error;
}

void AggregatorMembership::leave(Time now, Departure departure) {
  if (engine_) return engine_->leave(now, attachment_.io(), departure);
  has_left_ = true;
}

void AggregatorMembership::abort(const Error& why, const std::optional<AbortInfo>& cause, Time) {
  if (engine_) return engine_->abort(why, attachment_.io(), cause);
  fail(why);
}

// -------------------------------------------------------------------------------------- the loop
bool AggregatorMembership::on_time(Time now) {
  if (!engine_ && !over()) find_aggregators(now);
  if (!engine_) return false;
  engine_->on_time(now, attachment_.io());
  if (!reserved_ && state() == State::kActive) reserve(label_.name());
  return false;
}

void AggregatorMembership::receive(const Endpoint& from, Buffer payload, Time now) {
  if (engine_) engine_->receive(from, std::move(payload), now, attachment_.io());
}

void AggregatorMembership::on_link(std::uint16_t port_id, bool up, Time now) {
  if (engine_) engine_->on_link(port_id, up, now);
}

void AggregatorMembership::excuse_pause(Duration pause, Time now) {
  if (engine_ && pause > worker::Engine::kLongTurn) engine_->excuse_pause(pause, now);
}

std::size_t AggregatorMembership::awaited_bytes() const {
  return engine_ ? engine_->awaited_bytes() : 0;
}

// -------------------------------------------------------------------------------------- figures
const worker::Counters& AggregatorMembership::counters() const {
  static const worker::Counters none;
  return engine_ ? engine_->counters() : none;
}

std::vector<JobFigures::Path> AggregatorMembership::paths() const {
  std::vector<JobFigures::Path> all;
  if (engine_)
    engine_->for_each_path(
        [&](const rounds::RetransmissionTimeout& rto, const rounds::CongestionWindow& window) {
          all.push_back({static_cast<std::uint16_t>(window.width()), rto.smoothed(), rto.value()});
        });
  return all;
}

}  // namespace sluice
