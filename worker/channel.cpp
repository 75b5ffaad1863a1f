#include "worker/channel.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "worker/derived_job.hpp"

namespace sluice {
namespace {

/// The job's own failure bounds the wait.
constexpr Duration kAsLongAsTheJobLives = std::chrono::hours(24 * 365 * 100);

std::uint16_t streams_of(const Session& session) {
  const std::uint32_t channels = std::uint32_t{session.ranks} * (session.ranks - 1u);
  const auto share = static_cast<std::uint16_t>(std::clamp<std::uint32_t>(
      limits::kStreamsOfAllChannels / channels, 1, limits::kMaxChannelStreams));
  return std::min(session.streams, std::max(share, session.shards));
}

/// The same on both sides, and another for each route and each generation of a job.
std::uint32_t job_of(Route route, std::uint32_t job, std::uint64_t generation) {
  static_assert(kMaxRanks <= 256);
  return derived_job(job, generation, std::uint32_t{route.from} << 8 | route.to);
}

worker::EngineConfig config_of(Route route, bool sends, const Channel::Parent& parent) {
  worker::EngineConfig config = parent.config;
  config.job = job_of(route, parent.config.job, parent.session.generation);
  config.rank = Rank{static_cast<std::uint16_t>(sends ? 0 : 1)};
  config.ranks = 2;
  config.block_elements = parent.session.block_elements;
  config.payload_bytes = parent.session.payload_bytes;
  config.streams = streams_of(parent.session);
  config.history = limits::kChannelHistory;
  config.join_timeout = kAsLongAsTheJobLives;
  config.authenticate_packets = parent.session.authenticated;
  config.encrypt_packets = parent.session.encrypted;
  config.slots_id = 0;  // messages go in packets
  config.results = nullptr;
  const worker::KnownAs of_parent = parent.config.known_as();
  config.alias = worker::KnownAs{.job = of_parent.job,
                                 .ranks = {Rank{route.from}, Rank{route.to}},
                                 .told = of_parent.told_of_part(std::to_string(route.from) +
                                                                "-to-" + std::to_string(route.to))};
  return config;
}

std::string text_of(Route route) {
  return "from rank " + std::to_string(route.from) + " to rank " + std::to_string(route.to);
}

/// What the texts of jobs leave open about messages.
Error explained(const Error& error, Route route) {
  const auto with = [&](const std::string& what) {
    return Error(error.code(), std::string(error.what()) + "; " + what, error.rank(), error.op());
  };
  switch (error.code()) {
    case ErrorCode::kOpMismatch:
      return with("that is message " + std::to_string(error.op().value_or(0)) + " " +
                  text_of(route));
    case ErrorCode::kInvalidArgument:
      return with("so long is a message " + text_of(route) +
                  ", and its packets may be smaller than the job's");
    case ErrorCode::kNotAuthenticated:
      return with(secret_advice("messages go by jobs"));
    case ErrorCode::kQuota:
      return with("messages " + text_of(route) + " count as a job there");
    default:
      return error;
  }
}

}  // namespace

Channel::Channel(Progress& progress, Route route, const Parent& parent, Time now,
                 net::DatagramIo& io)
    : progress_(progress),
      route_(route),
      sends_(parent.config.rank.value == route.from),
      reserved_(progress.reserve_buffers(
          parent.config.known_as().name() + ": a channel " + text_of(route),
          streams_of(parent.session), limits::kChannelHistory, parent.config.secret != nullptr)),
      timeline_(parent.timeline) {
  join(parent, now, io);
  try {
    progress_.add(*this, parent.config.known_as().name() + ": a channel " + text_of(route));
  } catch (...) {
    progress_.release_buffers(reserved_);
    throw;
  }
}

Channel::~Channel() {
  progress_.remove(*this);
  progress_.release_buffers(reserved_);
}

void Channel::join(const Parent& parent, Time now, net::DatagramIo& io) {
  const worker::Counters before = engine_ ? engine_->counters() : worker::Counters{};
  engine_ = std::make_unique<WorkerEngine>(config_of(route_, sends_, parent), parent.aggregators);
  engine_->count_on(before);
  engine_->tell_begun(timeline_.is_on());
  engine_->start(now, io);
}

void Channel::rejoin(const Parent& parent, Time now, net::DatagramIo& io) {
  assert(waits_in_vain());
  progress_.logger()->debug("{}: messages {} wait on for the other rank",
                            parent.config.known_as().name(), text_of(route_));
  join(parent, now, io);
}

bool Channel::waits_in_vain() const {
  const auto& why = engine_->abort_info();
  return submitted_ == 0 && why && why->reason == wire::AbortReason::kAbsent;
}

bool Channel::is_joining() const {
  return engine_->state() == WorkerEngine::State::kJoining || waits_in_vain();
}

void Channel::post(const worker::OpRequest& request, std::shared_ptr<Work::State> state,
                   Attachment& attachment, Time now) {
  state->member = this;
  state->op = submitted_ + queue_.size();
  state->recorded = timeline_.called(sends_ ? "send" : "recv", request, state->started,
                                     sends_ ? route_.to : route_.from);
  works_.add(std::move(state));
  queue_.push_back(request);
  next_overdue_ = std::min(next_overdue_, request.timeout.due);
  after_turn(attachment, now);
}

void Channel::set_timeout(OpNumber op, const worker::OpTimeout& timeout) {
  if (op < submitted_) return engine_->set_timeout(op, timeout);
  queue_[op - submitted_].timeout = timeout;
  next_overdue_ = std::min(next_overdue_, timeout.due);
}

/// The engine, which may be that of the other side, looks after those that were submitted.
std::optional<AbortInfo> Channel::find_overdue(Time now) {
  const auto of = [&](OpNumber op, std::uint64_t limit_ms) {
    return AbortInfo{.reason = wire::AbortReason::kMessageTimedOut,
                     .rank_a = Rank{route_.from},
                     .rank_b = Rank{route_.to},
                     .value_a = limit_ms,
                     .op = op};
  };
  if (const auto& why = engine_->abort_info(); why && why->reason == wire::AbortReason::kOpTimedOut)
    return of(why->op, why->value_a);
  if (now < next_overdue_) return std::nullopt;
  next_overdue_ = kNever;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const worker::OpTimeout& timeout = queue_[i].timeout;
    next_overdue_ = std::min(next_overdue_, timeout.due);
    if (timeout.due <= now)
      return of(submitted_ + i, static_cast<std::uint64_t>(timeout.limit.count()));
  }
  return std::nullopt;
}

bool Channel::after_turn(Attachment& attachment, Time now) {
  if (!overdue_) overdue_ = find_overdue(now);
  if (overdue_) return false;
  if (is_joining()) return false;
  const bool starts = !queue_.empty();
  for (; !queue_.empty(); queue_.pop_front()) {
    [[maybe_unused]] const OpNumber op = engine_->submit(queue_.front(), now, attachment.io());
    assert(op == submitted_);
    ++submitted_;
  }
  if (engine_->has_begun()) works_.run(engine_->take_begun(), now);
  if (!engine_->has_completions()) return starts;
  std::vector<worker::Completion> completions = engine_->take_completions();
  for (worker::Completion& completion : completions)
    if (completion.error) completion.error = explained(*completion.error, route_);
  works_.finish(std::move(completions));
  return true;
}

/// Also what failed a moment ago: that the job failed is why.
void Channel::end(const Error& why, net::DatagramIo& io, Departure departure) {
  queue_.clear();
  engine_->abort(why, io, cause_of(wire::AbortReason::kRankAborted, engine_->rank(), departure));
  std::vector<worker::Completion> completions = engine_->take_completions();
  for (worker::Completion& completion : completions)
    if (completion.error) completion.error = why.of_op(completion.op);
  works_.finish(std::move(completions));
  works_.fail(why);
}

std::optional<Rank> Channel::straggler() const {
  const Rank other{static_cast<std::uint16_t>(sends_ ? 1 : 0)};
  if (works_.empty() || !(is_joining() || engine_->awaited().contains(other))) return std::nullopt;
  return Rank{sends_ ? route_.to : route_.from};
}

std::vector<std::uint16_t> Channel::stragglers(OpNumber op) const {
  if (is_joining()) return {sends_ ? route_.to : route_.from};
  std::vector<std::uint16_t> ranks;
  engine_->awaited(op).for_each(
      [&](Rank rank) { ranks.push_back(rank == Rank{0} ? route_.from : route_.to); });
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace sluice
