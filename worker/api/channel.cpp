#include "worker/api/channel.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "common/base/ids.hpp"
#include "worker/job/derived_job.hpp"

namespace sluice {
namespace {

/// The id of a channel's job: the same on both sides, and different for each route and each
/// generation of the job.
std::uint32_t job_of(Route route, std::uint32_t job, std::uint64_t generation) {
  static_assert(kMaxRanks <= 256);
  return derived_job(job, generation, std::uint32_t{route.from} << 8 | route.to);
}

std::string text_of(Route route) {
  return "from rank " + std::to_string(route.from) + " to rank " + std::to_string(route.to);
}

/// Adds to an error what the texts of jobs do not say about messages.
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

Channel::Channel(Progress& progress, Route route, const Parent& parent, Time now)
    : progress_(progress),
      route_(route),
      sends_(parent.membership.rank().value == route.from),
      membership_(parent.membership.join_pair(pair(parent), now)),
      timeline_(parent.timeline) {
  progress_.add(*this, parent.label.name() + ": a channel " + text_of(route));
}

Channel::~Channel() {
  progress_.remove(*this);
}

Membership::Pair Channel::pair(const Parent& parent) const {
  const worker::JobLabel& of_job = parent.label;
  return {.job = job_of(route_, parent.membership.job(), parent.membership.session().generation),
          .alias = {.job = of_job.job,
                    .ranks = {Rank{route_.from}, Rank{route_.to}},
                    .announced_name = of_job.announced_name_of_part(
                        std::to_string(route_.from) + "-to-" + std::to_string(route_.to))},
          .first = Rank{route_.from},
          .second = Rank{route_.to}};
}

void Channel::rejoin(const Parent& parent, Time now) {
  assert(waits_in_vain());
  progress_.logger()->debug("{}: messages {} wait on for the other rank", parent.label.name(),
                            text_of(route_));
  const worker::Counters before = membership_->counters();
  membership_.reset();  // frees what it has reserved, as it is reserved again
  membership_ = parent.membership.join_pair(pair(parent), now);
  membership_->count_on(before);
  membership_->notify_begun(timeline_.is_on());
}

bool Channel::waits_in_vain() const {
  const auto& why = membership_->abort_info();
  return submitted_ == 0 && why && why->reason == wire::AbortReason::kAbsent;
}

bool Channel::is_joining() const {
  return membership_->state() == Membership::State::kJoining || waits_in_vain();
}

void Channel::post(const worker::OpRequest& request, std::shared_ptr<Work::State> state, Time now) {
  state->client = this;
  state->op = submitted_ + queue_.size();
  state->recorded = timeline_.called(sends_ ? "send" : "recv", request, state->started,
                                     sends_ ? route_.to : route_.from);
  works_.add(std::move(state));
  queue_.push_back(request);
  next_overdue_ = std::min(next_overdue_, request.timeout.due);
  after_turn(now);
}

void Channel::set_timeout(OpNumber op, const worker::OpTimeout& timeout) {
  if (op < submitted_) return membership_->set_timeout(op, timeout);
  queue_[op - submitted_].timeout = timeout;
  next_overdue_ = std::min(next_overdue_, timeout.due);
}

/// The engine, perhaps that of the other side, checks the time-outs of ops that were submitted.
std::optional<AbortInfo> Channel::find_overdue(Time now) {
  const auto of = [&](OpNumber op, std::uint64_t limit_ms) {
    return AbortInfo{.reason = wire::AbortReason::kMessageTimedOut,
                     .rank_a = Rank{route_.from},
                     .rank_b = Rank{route_.to},
                     .value_a = limit_ms,
                     .op = op};
  };
  if (const auto& why = membership_->abort_info();
      why && why->reason == wire::AbortReason::kOpTimedOut)
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

bool Channel::after_turn(Time now) {
  if (ended_) return finish_ended();
  if (!overdue_) overdue_ = find_overdue(now);
  if (overdue_) return false;
  if (is_joining()) return false;
  const bool starts = !queue_.empty();
  for (; !queue_.empty(); queue_.pop_front()) {
    const worker::OpRequest& request = queue_.front();
    [[maybe_unused]] const OpNumber op =
        membership_->submit(request, {&request.element_count, 1}, now);
    assert(op == submitted_);
    ++submitted_;
  }
  if (membership_->has_begun()) works_.run(membership_->take_begun(), now);
  if (!membership_->has_completions()) return starts;
  std::vector<worker::Completion> completions = membership_->take_completions();
  for (worker::Completion& completion : completions)
    if (completion.error) completion.error = explained(*completion.error, route_);
  works_.finish(std::move(completions));
  return true;
}

void Channel::end(const Error& why, Departure departure, Time now) {
  if (ended_) return;
  ended_ = why;
  std::vector<worker::Completion> never_begun;
  for (std::size_t i = 0; i < queue_.size(); ++i)
    never_begun.push_back(
        {.op = submitted_ + i, .statistics = {}, .error = why.of_op(submitted_ + i)});
  queue_.clear();
  works_.finish(std::move(never_begun));
  membership_->abort(why, cause_of(wire::AbortReason::kRankAborted, membership_->rank(), departure),
                     now);
  finish_ended();
}

/// Completes what has ended, including ops that failed a moment ago: the failure of the job is
/// their reason.
bool Channel::finish_ended() {
  std::vector<worker::Completion> completions = membership_->take_completions();
  for (worker::Completion& completion : completions)
    if (completion.error) completion.error = ended_->of_op(completion.op);
  const bool any = !completions.empty();
  works_.finish(std::move(completions));
  return any;
}

std::optional<Rank> Channel::straggler() const {
  const Rank other{static_cast<std::uint16_t>(sends_ ? 1 : 0)};
  if (works_.empty() || !(is_joining() || membership_->awaited().contains(other)))
    return std::nullopt;
  return Rank{sends_ ? route_.to : route_.from};
}

std::vector<std::uint16_t> Channel::stragglers(OpNumber op) const {
  if (is_joining()) return {sends_ ? route_.to : route_.from};
  std::vector<std::uint16_t> ranks;
  membership_->awaited(op).for_each(
      [&](Rank rank) { ranks.push_back(rank == Rank{0} ? route_.from : route_.to); });
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace sluice
