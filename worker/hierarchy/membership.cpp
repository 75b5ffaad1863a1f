#include "worker/hierarchy/membership.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "worker/derived_job.hpp"
#include "worker/device_side.hpp"

namespace sluice::worker::hierarchy {
namespace {

using wire::AbortReason;

// Which of the jobs that are derived from one: beyond those of its channels.
constexpr std::uint32_t kGatherJob = 0x1'0000;
constexpr std::uint32_t kSpreadJob = 0x1'0001;
constexpr std::uint32_t kFirstColumn = 0x2'0000;

/// A rank that ends its column tells no more than that. Why it did comes by `whole` meanwhile.
constexpr Duration kCauseTime = std::chrono::seconds(1);

bool is_of_op(const AbortInfo& why) {
  return why.reason == AbortReason::kOpMismatch || why.reason == AbortReason::kOpTimedOut;
}

}  // namespace

// --------------------------------------------------------------------------------------- joining
Membership::Part::Part(Membership& of, std::unique_ptr<sluice::Membership> membership)
    : of_(of), membership_(std::move(membership)) {
  of.surroundings_.progress.add(*this, of.known_as_.name());
}

Membership::Part::~Part() {
  of_.surroundings_.progress.remove(*this);
}

Membership::Membership(Surroundings surroundings, KnownAs known_as, Placement placement,
                       std::unique_ptr<AggregatorMembership> whole)
    : surroundings_(std::move(surroundings)),
      known_as_(std::move(known_as)),
      placement_(std::move(placement)),
      whole_(std::move(whole)) {}

void Membership::join(Time now) {
  const auto add = [this](auto membership) {
    return std::make_unique<Part>(*this, std::move(membership));
  };
  try {
    auto gather = join_host(kGatherJob, now);
    gather_membership_ = gather.get();
    gather_ = add(std::move(gather));
    if (is_on_one_host()) return;
    auto spread = join_host(kSpreadJob, now);
    spread_membership_ = spread.get();
    spread_ = add(std::move(spread));
    if (placement_.local_rank_of(rank()) < placement_.columns()) column_ = add(join_column(now));
  } catch (const Error& error) {
    fail(error, std::nullopt, now);
  }
}

std::unique_ptr<host::Membership> Membership::join_host(std::uint32_t which, Time now) const {
  const Progress& progress = surroundings_.progress;
  return std::make_unique<host::Membership>(
      host::Membership::Surroundings{.host = surroundings_.host,
                                     .uses_processes = progress.options().host_process_vm,
                                     .payload_bytes = session().payload_bytes,
                                     .logger = progress.logger()},
      host::Membership::Ranks{
          .job = derived_job(job(), session().generation, which),
          .all = placement_.ranks_of(placement_.host_of(rank())),
          .self = placement_.local_rank_of(rank()),
          .of_job = ranks(),
          .block_elements = session().block_elements,
          .join_timeout = surroundings_.join_timeout,
          .advice = "with SLUICE_HOST_LEVEL=0 on all ranks each joins the aggregators by itself"},
      known_as_, surroundings_.secret, now);
}

std::unique_ptr<AggregatorMembership> Membership::join_column(Time now) const {
  const std::uint16_t number = placement_.local_rank_of(rank());
  return whole_->join_beside(
      {.job = derived_job(job(), session().generation, kFirstColumn | number),
       .alias = {.job = known_as_.job,
                 .ranks = placement_.column(number),
                 .told = known_as_.told_of_part("column-" + std::to_string(number))},
       .rank = Rank{placement_.host_of(rank())},
       .ranks = placement_.hosts()},
      now);
}

std::unique_ptr<sluice::Membership> Membership::join_pair(const Pair& pair, Time now) {
  if (placement_.host_of(pair.first) == placement_.host_of(pair.second))
    return gather().join_pair(pair, now);
  return whole_->join_pair(pair, now);
}

template <class F>
void Membership::for_each_part(F&& f) const {
  for (const std::unique_ptr<Part>* const part : {&gather_, &spread_, &column_})
    if (*part) f((*part)->membership());
}

std::string Membership::waits_for() const {
  std::string first;
  for_each_part([&](const sluice::Membership& part) {
    if (first.empty() && part.state() == State::kJoining) first = part.waits_for();
  });
  return first;
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
  if (failure_ || is_leaving_) {
    const Error left(ErrorCode::kAborted, known_as_.name() + ": this rank has left");
    ++first_op_;
    completions_.push_back(
        {.op = number, .statistics = {}, .error = failure_.value_or(left).of_op(number)});
    return number;
  }
  ops_.push_back({.request = request, .counts = {counts.begin(), counts.end()}});
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

/// Takes what the parts have done, and gives them what follows. Whether there was anything.
bool Membership::advance(Time now) {
  if (is_over_) return false;
  bool any = false;
  if (has_joined_ && !failure_) {
    begin_waiting(now);
    any |= collect_whole();
    any |= collect_gather(now);
    any |= collect_column();
    any |= begin_spreads(now);
    any |= collect_spread();
    complete_first();
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
    if (whole_->failure()) break;  // see look_at_parts()
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
    if (gather().failure()) break;
    Op& op = ops_[completion.op - first_op_];
    if (is_on_one_host()) {
      op.is_spread = true;
      op.statistics = completion.statistics;
      op.error = completion.error;
    } else if (carries()) {
      op.at = Op::At::kBetween;
      column_->membership().submit(*op.steps->between(), op.counts, now);
    } else {
      op.has_result = true;
    }
  }
  return true;
}

bool Membership::collect_column() {
  if (!carries()) return false;
  sluice::Membership& column = column_->membership();
  column.take_begun();
  if (!column.has_completions()) return false;
  for (const Completion& completion : column.take_completions()) {
    if (column.failure()) break;
    Op& op = ops_[completion.op - first_op_];
    op.has_result = true;
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
    if (spread().failure()) break;
    Op& op = ops_[completion.op - first_op_];
    op.is_spread = true;
    if (op.request.device && sums_by_hosts(op.request)) give_to_device(op.request);
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
  if (op.at == Op::At::kBetween && !op.has_result)
    column_->membership().set_timeout(number, timeout);
  if (op.at == Op::At::kSpread) spread().set_timeout(number, timeout);
}

/// For whom the parts wait.
RankSet Membership::awaited() const {
  RankSet ranks = whole_->awaited();
  ranks |= gather().awaited();
  if (spread_) ranks |= spread().awaited();
  if (column_) {
    const std::vector<Rank> column = placement_.column(placement_.local_rank_of(rank()));
    column_->membership().awaited().for_each([&](Rank host) { ranks.insert(column[host.value]); });
  }
  return ranks;
}

RankSet Membership::awaited(OpNumber number) const {
  const Op& op = ops_[number - first_op_];
  return number < begun_ops_ && op.at == Op::At::kGather && !op.has_result
             ? gather().awaited(number)
             : awaited();
}

double Membership::progress(OpNumber number) const {
  if (number >= begun_ops_) return 0;
  const Op& op = ops_[number - first_op_];
  if (op.of_whole) return whole_->progress(*op.of_whole);
  if (is_on_one_host()) return gather().progress(number);
  if (op.has_result) return 1;
  return op.at == Op::At::kBetween ? column_->membership().progress(number) : 0;
}

// --------------------------------------------------------------------------------------- the end
void Membership::look_at_parts(Time now) {
  if (!failure_ && whole_->failure()) fail_with(*whole_, now);
  bool is_active = true;
  for_each_part([&](sluice::Membership& part) {
    if (!failure_ && part.failure()) fail_with(part, now);
    is_active = is_active && part.state() == State::kActive;
  });
  has_joined_ = has_joined_ || is_active;
}

void Membership::fail_with(const sluice::Membership& part, Time now) {
  const std::optional<AbortInfo>& why = part.abort_info();
  if (!why) return fail(*part.failure(), why, now);
  const bool is_column = column_ && &part == &column_->membership();
  if (is_column && why->reason == AbortReason::kRankAborted) {
    cause_due_ = std::min(cause_due_, after(now, kCauseTime));
    if (now < cause_due_) return;
  }
  AbortInfo ours = *why;
  if (is_column) {
    const auto of_column = [&](Rank host) {
      if (host.value >= placement_.hosts()) return host;
      return placement_.column(placement_.local_rank_of(rank()))[host.value];
    };
    ours.rank_a = of_column(why->rank_a);
    ours.rank_b = of_column(why->rank_b);
  }
  if (&part == whole_.get() && is_of_op(*why)) {
    const auto found = std::ranges::find(ops_, why->op, &Op::of_whole);
    if (found != ops_.end()) ours.op = first_op_ + static_cast<OpNumber>(found - ops_.begin());
  }
  fail(ours.op == why->op ? *part.failure() : known_as_.error_of(ours), ours, now);
}

/// All parts end. Others learn why by `whole`, and on this host by its memory; the ranks of a
/// column have numbers in which it could not be told.
void Membership::fail(const Error& error, const std::optional<AbortInfo>& why, Time now) {
  if (failure_) return;
  failure_ = error;
  abort_info_ = why;
  whole_->abort(error, why, now);
  for_each_part([&](sluice::Membership& part) {
    const AbortInfo neutral{.reason = AbortReason::kRankAborted, .rank_a = part.rank()};
    part.abort(error, column_ && &part == &column_->membership() ? neutral : why, now);
  });
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
  for_each_part([&](sluice::Membership& part) { part.leave(now, departure); });
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
  bool are_over = whole_->over();
  for_each_part([&](const sluice::Membership& part) { are_over = are_over && part.over(); });
  if (!are_over) return false;
  is_over_ = true;
  for (; !ops_.empty(); ops_.pop_front(), ++first_op_)
    completions_.push_back(
        {.op = first_op_, .statistics = {}, .error = failure_->of_op(first_op_)});
  return true;
}

// -------------------------------------------------------------------------------------- the loop
bool Membership::on_time(Time now) {
  const bool any = whole_->on_time(now);
  return advance(now) || any;
}

// -------------------------------------------------------------------------------------- figures
const Counters& Membership::counters() const {
  counters_ = whole_->counters();
  for_each_part([&](const sluice::Membership& part) { counters_ += part.counters(); });
  counters_.ops_completed = ops_completed_;
  counters_.ops_failed = ops_failed_;
  return counters_;
}

std::size_t Membership::running_streams() const {
  std::size_t streams = whole_->running_streams();
  for_each_part([&](const sluice::Membership& part) { streams += part.running_streams(); });
  return streams;
}

bool Membership::is_whole() const {
  bool all = whole_->is_whole();
  for_each_part([&](const sluice::Membership& part) { all = all && part.is_whole(); });
  return all;
}

std::vector<JobFigures::Path> Membership::paths() const {
  std::vector<JobFigures::Path> all = whole_->paths();
  for_each_part([&](const sluice::Membership& part) {
    const std::vector<JobFigures::Path> some = part.paths();
    all.insert(all.end(), some.begin(), some.end());
  });
  return all;
}

}  // namespace sluice::worker::hierarchy
