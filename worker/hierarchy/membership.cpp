#include "worker/hierarchy/membership.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "worker/derived_job.hpp"
#include "worker/device_side.hpp"

namespace sluice::worker::hierarchy {
namespace {

using wire::AbortReason;

/// A rank that ends its rail tells no more than that. Why it did comes by `whole` meanwhile.
constexpr Duration kCauseTime = std::chrono::seconds(1);

std::vector<sluice::Membership*> all_of(const Parts& parts) {
  std::vector<sluice::Membership*> all{parts.gather.get(), parts.spread.get(), parts.rail.get()};
  std::erase(all, nullptr);
  return all;
}

/// What the texts of jobs leave open about rails.
Error explained(const Error& error) {
  const auto with = [&](const std::string& what) {
    return Error(error.code(), std::string(error.what()) + "; " + what, error.rank(), error.op());
  };
  if (error.code() == ErrorCode::kNotAuthenticated)
    return with(secret_advice("hosts of several ranks sum by jobs"));
  if (error.code() == ErrorCode::kQuota)
    return with(
        "what hosts of several ranks sum by counts as a job there, for each rank of a host");
  return error;
}

bool is_of_op(const AbortInfo& why) {
  return why.reason == AbortReason::kOpMismatch || why.reason == AbortReason::kOpTimedOut;
}

}  // namespace

// --------------------------------------------------------------------------------------- joining
Membership::Membership(KnownAs known_as, Placement placement,
                       std::unique_ptr<sluice::Membership> whole, Parts parts)
    : known_as_(std::move(known_as)),
      placement_(std::move(placement)),
      whole_(std::move(whole)),
      parts_(std::move(parts)),
      all_parts_(all_of(parts_)) {
  assert(parts_.gather && (parts_.spread != nullptr) == !is_on_one_host());
}

std::unique_ptr<sluice::Membership> Membership::join_pair(const Pair& pair, Time now) {
  if (placement_.host_of(pair.first) == placement_.host_of(pair.second))
    return gather().join_pair(pair, now);
  return whole_->join_pair(pair, now);
}

std::string Membership::waits_for() const {
  for (const sluice::Membership* const part : parts())
    if (part->state() == State::kJoining) return part->waits_for();
  return "the ranks of this host";
}

Membership::State Membership::state() const {
  // Whoever finds it over asks for no completions any more.
  if (is_over_ && completions_.empty()) return failure_ ? State::kFailed : State::kLeft;
  if (failure_ || is_leaving_) return State::kLeaving;
  return has_joined_ ? State::kActive : State::kJoining;
}

// ------------------------------------------------------------------------------------------- ops
OpNumber Membership::submit(const OpRequest& request, std::span<const std::uint64_t> counts,
                            Time now) {
  const OpNumber number = next_op();
  ops_.push_back({.request = request, .counts = {counts.begin(), counts.end()}});
  if (is_over_ || is_leaving_)
    end_ops();
  else
    advance(now);
  return number;
}

/// An op whose tensor has not come from a device yet, and those behind it, begin later.
void Membership::begin_waiting(Time now) {
  for (; !failure_ && begun_ops_ < next_op(); ++begun_ops_) {
    Op& op = ops_[begun_ops_ - first_op_];
    if (is_on_one_host()) {
      gather().submit(op.request, op.counts, now);
      continue;
    }
    const bool sums = sums_by_hosts(op.request);
    if (sums && !has_arrived(op.request)) return;
    try {
      OpRequest request = op.request;
      if (sums && request.device) take_from_device(request);
      op.steps = std::make_unique<Steps>(request, op.counts, placement_, rank(), session());
    } catch (const Error& error) {  // of memory that is not to be had
      return fail(error, AbortInfo{.reason = AbortReason::kNoMemory, .rank_a = rank()}, now);
    }
    if (!sums) op.of_whole = whole_->submit(op.request, op.counts, now);
    gather().submit(op.steps->gather().request, op.steps->gather().parts, now);
  }
}

bool Membership::awaits_arrivals() const {
  return whole_->awaits_arrivals() || (!is_on_one_host() && begun_ops_ < next_op());
}

bool Membership::advance(Time now) {
  if (is_over_) return false;
  bool any = false;
  if (has_joined_ && !failure_) {
    begin_waiting(now);
    any |= collect_whole();
    any |= collect_gather(now);
    any |= collect_rail();
    any |= begin_spreads(now);
    any |= collect_spread();
    complete_first();
    end_overdue(now);
  }
  look_at_parts(now);
  return end_if_over() || any;
}

bool Membership::collect_whole() {
  whole_->take_begun();
  if (!whole_->has_completions()) return false;
  for (const Completion& completion : whole_->take_completions()) {
    const auto op = std::ranges::find(ops_, completion.op, &Op::of_whole);
    assert(op != ops_.end());
    if (completion.error && whole_->failure()) break;  // see look_at_parts()
    op->of_whole.reset();
    op->statistics = completion.statistics;
    op->error = completion.error;
  }
  return true;
}

bool Membership::collect_gather(Time now) {
  for (const OpNumber op : gather().take_begun())
    if (tells_begun_) begun_.push_back(op);
  if (!gather().has_completions()) return false;
  for (const Completion& completion : gather().take_completions()) {
    if (completion.error && gather().failure()) break;
    Op& op = ops_[completion.op - first_op_];
    op.error = completion.error;
    if (is_on_one_host()) {
      op.is_spread = true;
      op.statistics = completion.statistics;
    } else if (carries()) {
      op.at = Op::At::kBetween;
      rail().submit(*op.steps->between(), op.counts, now);
    } else {
      op.has_result = true;
    }
  }
  return true;
}

bool Membership::collect_rail() {
  if (!carries()) return false;
  rail().take_begun();
  if (!rail().has_completions()) return false;
  for (const Completion& completion : rail().take_completions()) {
    if (completion.error && rail().failure()) break;
    Op& op = ops_[completion.op - first_op_];
    op.has_result = true;
    if (completion.error) op.error = completion.error;
    if (!sums_by_hosts(op.request)) continue;
    op.statistics = completion.statistics;
    op.statistics.blocks = op.steps->blocks();
  }
  return true;
}

/// In the order of their calls, as all ranks of the host do.
bool Membership::begin_spreads(Time now) {
  if (is_on_one_host()) return false;
  bool any = false;
  for (; spread_ops_ < begun_ops_ && ops_[spread_ops_ - first_op_].has_result; ++spread_ops_) {
    Op& op = ops_[spread_ops_ - first_op_];
    op.at = Op::At::kSpread;
    spread().submit(op.steps->spread().request, op.steps->spread().parts, now);
    any = true;
  }
  return any;
}

bool Membership::collect_spread() {
  if (is_on_one_host()) return false;
  spread().take_begun();
  if (!spread().has_completions()) return false;
  for (const Completion& completion : spread().take_completions()) {
    if (completion.error && spread().failure()) break;
    Op& op = ops_[completion.op - first_op_];
    op.is_spread = true;
    if (completion.error) op.error = completion.error;
    if (!op.error && op.request.device && sums_by_hosts(op.request)) give_to_device(op.request);
  }
  return true;
}

void Membership::complete_first() {
  for (; !ops_.empty() && ops_.front().is_spread && !ops_.front().of_whole; ++first_op_) {
    const Op& op = ops_.front();
    completions_.push_back(
        {.op = first_op_,
         .statistics = op.statistics,
         .error = op.error ? std::optional(op.error->of_op(first_op_)) : std::nullopt});
    ops_.pop_front();
  }
}

std::vector<Completion> Membership::take_completions() {
  for (const Completion& completion : completions_)
    ++(completion.error ? ops_failed_ : ops_completed_);
  return std::exchange(completions_, {});
}

void Membership::tell_begun(bool is_told) {
  tells_begun_ = is_told;
  whole_->tell_begun(is_told);
  begun_.clear();
}

void Membership::set_timeout(OpNumber number, const OpTimeout& timeout) {
  if (number < first_op_) return;
  Op& op = ops_[number - first_op_];
  op.request.timeout = timeout;
  if (number >= begun_ops_) return;
  if (op.steps) op.steps->set_timeout(timeout);
  if (op.of_whole) whole_->set_timeout(*op.of_whole, timeout);
  if (op.at == Op::At::kGather && !op.has_result) gather().set_timeout(number, timeout);
  if (op.at == Op::At::kBetween && !op.has_result) rail().set_timeout(number, timeout);
  if (op.at == Op::At::kSpread) spread().set_timeout(number, timeout);
}

/// For whom the parts wait.
RankSet Membership::awaited() const {
  RankSet ranks = whole_->awaited();
  ranks |= gather().awaited();
  if (parts_.spread) ranks |= spread().awaited();
  if (carries()) {
    rail().awaited().for_each([&](Rank host) { ranks.insert(of_rail(host)); });
  }
  return ranks;
}

RankSet Membership::awaited(OpNumber number) const {
  if (number < first_op_) return {};
  const Op& op = ops_[number - first_op_];
  return number < begun_ops_ && op.at == Op::At::kGather && !op.has_result
             ? gather().awaited(number)
             : awaited();
}

double Membership::progress(OpNumber number) const {
  if (number < first_op_) return 1;
  if (number >= begun_ops_) return 0;
  const Op& op = ops_[number - first_op_];
  if (op.of_whole) return whole_->progress(*op.of_whole);
  if (is_on_one_host()) return gather().progress(number);
  if (op.has_result) return 1;
  return op.at == Op::At::kBetween ? rail().progress(number) : 0;
}

// --------------------------------------------------------------------------------------- the end
void Membership::look_at_parts(Time now) {
  if (!failure_ && whole_->failure()) fail_with(*whole_, now);
  bool is_active = true;
  for (const sluice::Membership* const part : parts()) {
    if (!failure_ && part->failure()) fail_with(*part, now);
    is_active = is_active && part->state() == State::kActive;
  }
  has_joined_ = has_joined_ || is_active;
}

/// A rank's number in the job, by that in our rail, of which an aggregator may say what it likes.
Rank Membership::of_rail(Rank host) const {
  return host.value < placement_.hosts() ? placement_.rail(rail_number())[host.value] : rank();
}

/// Those that no part looks after: they wait for what a device copies, or for the ops before them.
void Membership::end_overdue(Time now) {
  for (OpNumber number = first_op_; number < next_op(); ++number) {
    const Op& op = ops_[number - first_op_];
    const bool waits = number >= begun_ops_ || (op.has_result && number >= spread_ops_);
    if (!waits || is_on_one_host() || now < op.request.timeout.due) continue;
    const AbortInfo why{.reason = AbortReason::kOpTimedOut,
                        .rank_a = rank(),
                        .value_a = static_cast<std::uint64_t>(op.request.timeout.limit.count()),
                        .op = number};
    return fail(known_as_.error_of(why), why, now);
  }
}

void Membership::fail_with(const sluice::Membership& part, Time now) {
  const std::optional<AbortInfo>& why = part.abort_info();
  if (!why) return fail(*part.failure(), why, now);
  const bool is_rail = carries() && &part == &rail();
  if (is_rail && why->reason == AbortReason::kRankAborted) {
    cause_due_ = std::min(cause_due_, after(now, kCauseTime));
    if (now < cause_due_) return;
  }
  AbortInfo ours = *why;
  if (is_rail) {
    ours.rank_a = of_rail(why->rank_a);
    ours.rank_b = of_rail(why->rank_b);
  }
  if (&part == whole_.get() && is_of_op(*why)) {
    const auto found = std::ranges::find(ops_, why->op, &Op::of_whole);
    if (found != ops_.end()) ours.op = first_op_ + static_cast<OpNumber>(found - ops_.begin());
  }
  if (is_rail) return fail(explained(*part.failure()), ours, now);
  fail(ours.op == why->op ? *part.failure() : known_as_.error_of(ours), ours, now);
}

/// All parts end. Others learn why by `whole`, and on this host by its memory; the ranks of a
/// rail have numbers in which it could not be told.
void Membership::fail(const Error& error, const std::optional<AbortInfo>& why, Time now) {
  if (failure_) return;
  failure_ = error;
  abort_info_ = why;
  whole_->abort(error, why, now);
  for (sluice::Membership* const part : parts()) {
    const AbortInfo neutral{.reason = AbortReason::kRankAborted, .rank_a = part->rank()};
    part->abort(error, part == parts_.rail.get() ? neutral : why, now);
  }
}

void Membership::leave(Time now, Departure departure) {
  if (failure_ || is_leaving_) return;
  if (!ops_.empty())
    return fail(Error(ErrorCode::kAborted, known_as_.name() + ": this rank left with ops pending"),
                AbortInfo{.reason = AbortReason::kRankAborted,
                          .rank_a = rank(),
                          .value_a = static_cast<std::uint64_t>(departure)},
                now);
  is_leaving_ = true;
  for (sluice::Membership* const part : parts()) part->leave(now, departure);
  whole_->leave(now, departure);
  end_if_over();
}

void Membership::abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) {
  if (is_over_) return;
  fail(why, cause ? cause : AbortInfo{.reason = AbortReason::kRankAborted, .rank_a = rank()}, now);
  end_if_over();
}

/// Ops end once nobody can reach their tensors any more.
bool Membership::end_if_over() {
  if (is_over_ || !(failure_ || is_leaving_)) return false;
  const auto is_over = [](const sluice::Membership* part) { return part->over(); };
  if (!whole_->over() || !std::ranges::all_of(parts(), is_over)) return false;
  is_over_ = true;
  end_ops();
  return true;
}

void Membership::end_ops() {
  const Error left(ErrorCode::kAborted, known_as_.name() + ": this rank has left");
  for (; !ops_.empty(); ops_.pop_front(), ++first_op_)
    completions_.push_back(
        {.op = first_op_, .statistics = {}, .error = failure_.value_or(left).of_op(first_op_)});
  begun_ops_ = std::max(begun_ops_, first_op_);
  spread_ops_ = std::max(spread_ops_, first_op_);
}

// -------------------------------------------------------------------------------------- the loop
bool Membership::on_time(Time now) {
  const bool any = whole_->on_time(now);
  return advance(now) || any;
}

// -------------------------------------------------------------------------------------- figures
const Counters& Membership::counters() const {
  counters_ = whole_->counters();
  for (const sluice::Membership* const part : parts()) counters_ += part->counters();
  counters_.ops_completed = ops_completed_;
  counters_.ops_failed = ops_failed_;
  return counters_;
}

std::size_t Membership::running_streams() const {
  std::size_t streams = whole_->running_streams();
  for (const sluice::Membership* const part : parts()) streams += part->running_streams();
  return streams;
}

bool Membership::is_whole() const {
  const auto is_whole = [](const sluice::Membership* part) { return part->is_whole(); };
  return whole_->is_whole() && std::ranges::all_of(parts(), is_whole);
}

std::vector<JobFigures::Path> Membership::paths() const {
  std::vector<JobFigures::Path> all = whole_->paths();
  for (const sluice::Membership* const part : parts()) {
    const std::vector<JobFigures::Path> some = part->paths();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace sluice::worker::hierarchy
