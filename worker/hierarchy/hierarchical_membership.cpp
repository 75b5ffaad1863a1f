#include "worker/hierarchy/hierarchical_membership.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "worker/engine/device_side.hpp"
#include "worker/job/derived_job.hpp"

namespace sluice::worker::hierarchy {
namespace {

using wire::AbortReason;

/// When a rank ends its rail, the rail does not say why. The reason comes from `whole`. If none
/// comes within this time, `whole` has failed, too.
constexpr Duration kCauseTime = defaults::kAggregatorTimeout;

std::vector<sluice::Membership*> all_of(const Parts& parts) {
  std::vector<sluice::Membership*> all{parts.gather.get(), parts.spread.get(), parts.rail.get()};
  std::erase(all, nullptr);
  return all;
}

/// Adds to an error what the texts of jobs do not say about rails.
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

/// Adds statistics of a chunk; `blocks` is the number of blocks in its share.
void add(OpStatistics& sum, const OpStatistics& more, std::uint64_t blocks) {
  sum.blocks += blocks;
  sum.blocks_sent += more.blocks_sent;
  sum.blocks_received += more.blocks_received;
  sum.packets_sent += more.packets_sent;
  sum.packets_received += more.packets_received;
  sum.bytes_sent += more.bytes_sent;
  sum.bytes_received += more.bytes_received;
  sum.retransmissions += more.retransmissions;
}

bool is_of_op(const AbortInfo& why) {
  return why.reason == AbortReason::kOpMismatch || why.reason == AbortReason::kOpTimedOut;
}

}  // namespace

// --------------------------------------------------------------------------------------- joining
HierarchicalMembership::HierarchicalMembership(JobLabel label, Placement placement,
                                               std::unique_ptr<sluice::Membership> whole,
                                               Parts parts, std::uint64_t min_chunk_of_rail)
    : label_(std::move(label)),
      placement_(std::move(placement)),
      min_chunk_of_rail_(min_chunk_of_rail),
      whole_(std::move(whole)),
      parts_(std::move(parts)),
      all_parts_(all_of(parts_)) {
  assert(parts_.gather && (parts_.spread != nullptr) == !is_on_one_host());
}

std::unique_ptr<sluice::Membership> HierarchicalMembership::join_pair(const Pair& pair, Time now) {
  if (placement_.host_of(pair.first) == placement_.host_of(pair.second))
    return gather().join_pair(pair, now);
  return whole_->join_pair(pair, now);
}

std::string HierarchicalMembership::waits_for() const {
  for (const sluice::Membership* const part : parts())
    if (part->state() == State::kJoining) return part->waits_for();
  return "the ranks of this host";
}

HierarchicalMembership::State HierarchicalMembership::state() const {
  // A caller that sees that the membership is over takes no more completions.
  if (is_over_ && completions_.empty()) return failure_ ? State::kFailed : State::kLeft;
  if (failure_ || is_leaving_) return State::kLeaving;
  return has_joined_ ? State::kActive : State::kJoining;
}

// ------------------------------------------------------------------------------------------- ops
OpNumber HierarchicalMembership::submit(const OpRequest& request,
                                        std::span<const std::uint64_t> counts, Time now) {
  const OpNumber number = next_op();
  ops_.push_back({.request = request, .counts = {counts.begin(), counts.end()}});
  if (is_over_ || is_leaving_)
    end_ops();
  else
    advance(now);
  return number;
}

/// An op whose tensor has not come from a device yet begins later, and so do the ops behind it.
void HierarchicalMembership::begin_waiting(Time now) {
  for (; !failure_ && begun_ops_ < next_op(); ++begun_ops_) {
    const OpRequest& request = op_at(begun_ops_).request;
    const bool is_taken = !is_on_one_host() && sums_by_hosts(request);
    if (is_taken && !has_arrived(request)) return;
    begin(begun_ops_, now);
  }
}

void HierarchicalMembership::begin(OpNumber number, Time now) {
  Op& op = op_at(number);
  if (is_on_one_host()) {
    chunks_.push_back({.op = number});
    gather().submit(op.request, op.counts, now);
    return;
  }
  OpRequest request = op.request;
  request.number_in_errors = number;
  if (sums_by_hosts(request) && request.device) take_from_device(request);
  op.chunks = chunks_of(request, placement_, min_chunk_of_rail_);
  for (Chunk chunk{.of = op.chunks}; chunk.number < op.chunks; ++chunk.number) {
    try {
      chunks_.push_back({.op = number,
                         .place = chunk,
                         .steps = std::make_unique<Steps>(request, op.counts, placement_, rank(),
                                                          session(), chunk, pairs_)});
    } catch (const Error& error) {  // there is no memory
      return fail(error, AbortInfo{.reason = AbortReason::kNoMemory, .rank_a = rank()}, now);
    }
    Steps& steps = *chunks_.back().steps;
    if (host::KeyedMerge* const merge = steps.merge())
      gather().submit(*merge, now);
    else
      gather().submit(steps.gather().request, steps.gather().parts, now);
  }
}

bool HierarchicalMembership::awaits_arrivals() const {
  return whole_->awaits_arrivals() || (!is_on_one_host() && begun_ops_ < next_op());
}

bool HierarchicalMembership::advance(Time now) {
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

bool HierarchicalMembership::collect_whole() {
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

bool HierarchicalMembership::collect_gather(Time now) {
  for (const OpNumber number : gather().take_begun())
    if (notifies_begun_ && chunk_at(number).place.number == 0)
      begun_.push_back(chunk_at(number).op);
  if (!gather().has_completions()) return false;
  for (const Completion& completion : gather().take_completions()) {
    if (completion.error && gather().failure()) break;
    ChunkOfOp& chunk = chunk_at(completion.op);
    Op& op = op_at(chunk.op);
    if (completion.error) op.error = completion.error;
    if (is_on_one_host()) {
      chunk.is_spread = true;
      op.statistics = completion.statistics;
    } else if (carries()) {
      chunk.at = ChunkOfOp::At::kBetween;
      chunk.steps->end_gather();
      rail().submit(*chunk.steps->between(), op.counts, now);
    } else {
      chunk.has_result = true;
    }
  }
  return true;
}

bool HierarchicalMembership::collect_rail() {
  if (!carries()) return false;
  rail().take_begun();
  if (!rail().has_completions()) return false;
  for (const Completion& completion : rail().take_completions()) {
    if (completion.error && rail().failure()) break;
    ChunkOfOp& chunk = chunk_at(completion.op);
    Op& op = op_at(chunk.op);
    chunk.has_result = true;
    if (completion.error) op.error = completion.error;
    if (sums_by_hosts(op.request)) add(op.statistics, completion.statistics, chunk.steps->blocks());
  }
  return true;
}

/// Begins them in their order, as all ranks of the host do.
bool HierarchicalMembership::begin_spreads(Time now) {
  if (is_on_one_host()) return false;
  bool any = false;
  for (; spread_chunks_ < next_chunk() && chunk_at(spread_chunks_).has_result; ++spread_chunks_) {
    ChunkOfOp& chunk = chunk_at(spread_chunks_);
    Steps& steps = *chunk.steps;
    chunk.at = ChunkOfOp::At::kSpread;
    if (Op& op = op_at(chunk.op); !sums_by_hosts(op.request)) submit_to_whole(op, now);
    any = true;
    try {
      steps.end_between();
    } catch (const Error& error) {  // there is no memory
      fail(error, AbortInfo{.reason = AbortReason::kNoMemory, .rank_a = rank()}, now);
      break;
    }
    if (host::KeyedSpread* const pairs = steps.spread_pairs())
      spread().submit(*pairs, now);
    else
      spread().submit(steps.spread().request, steps.spread().parts, now);
  }
  return any;
}

/// Submits an op to `whole` once all ranks have shown that they have called it, so that no
/// disagreement can arise there. `whole` numbers its ops in another way, so an error of it would
/// name the wrong op. For the same reason the op has no time-out there.
void HierarchicalMembership::submit_to_whole(Op& op, Time now) {
  OpRequest request = op.request;
  request.timeout = {};
  op.of_whole = whole_->submit(request, op.counts, now);
}

bool HierarchicalMembership::collect_spread() {
  if (is_on_one_host()) return false;
  spread().take_begun();
  if (!spread().has_completions()) return false;
  for (const Completion& completion : spread().take_completions()) {
    if (completion.error && spread().failure()) break;
    ChunkOfOp& chunk = chunk_at(completion.op);
    chunk.is_spread = true;
    if (completion.error) op_at(chunk.op).error = completion.error;
  }
  return true;
}

void HierarchicalMembership::complete_first() {
  for (; !chunks_.empty() && chunks_.front().is_spread; chunks_.pop_front(), ++first_chunk_)
    ++op_at(chunks_.front().op).chunks_done;
  for (; !ops_.empty() && !ops_.front().of_whole; ops_.pop_front(), ++first_op_) {
    const Op& op = ops_.front();
    if (op.chunks_done < op.chunks) break;
    if (!op.error && op.request.device && !is_on_one_host() && sums_by_hosts(op.request))
      give_to_device(op.request);
    completions_.push_back(
        {.op = first_op_,
         .statistics = op.statistics,
         .error = op.error ? std::optional(op.error->of_op(first_op_)) : std::nullopt});
  }
}

std::vector<Completion> HierarchicalMembership::take_completions() {
  for (const Completion& completion : completions_)
    ++(completion.error ? ops_failed_ : ops_completed_);
  return std::exchange(completions_, {});
}

void HierarchicalMembership::notify_begun(bool is_wanted) {
  notifies_begun_ = is_wanted;
  gather().notify_begun(is_wanted);
  begun_.clear();
}

/// Calls f(number, chunk) for the chunks that are not done.
template <class F>
void HierarchicalMembership::for_each_chunk_of(OpNumber op, F&& f) const {
  for (OpNumber number = first_chunk_; number < next_chunk(); ++number)
    if (const ChunkOfOp& chunk = chunks_[number - first_chunk_]; chunk.op == op) f(number, chunk);
}

void HierarchicalMembership::set_timeout(OpNumber number, const OpTimeout& timeout) {
  if (number < first_op_) return;
  Op& op = op_at(number);
  op.request.timeout = timeout;
  for_each_chunk_of(number, [&](OpNumber of_parts, const ChunkOfOp& chunk) {
    if (chunk.steps) chunk.steps->set_timeout(timeout);
    if (chunk.at == ChunkOfOp::At::kSpread) return spread().set_timeout(of_parts, timeout);
    if (chunk.has_result) return;
    if (chunk.at == ChunkOfOp::At::kGather) return gather().set_timeout(of_parts, timeout);
    rail().set_timeout(of_parts, timeout);
  });
}

/// The ranks for which the parts wait.
RankSet HierarchicalMembership::awaited() const {
  RankSet ranks = whole_->awaited();
  ranks |= gather().awaited();
  if (parts_.spread) ranks |= spread().awaited();
  if (carries()) {
    rail().awaited().for_each([&](Rank host) { ranks.insert(of_rail(host)); });
  }
  return ranks;
}

RankSet HierarchicalMembership::awaited(OpNumber number) const {
  if (number < first_op_) return {};
  std::optional<RankSet> of_gather;
  for_each_chunk_of(number, [&](OpNumber of_parts, const ChunkOfOp& chunk) {
    if (chunk.place.number == 0 && chunk.at == ChunkOfOp::At::kGather && !chunk.has_result)
      of_gather = gather().awaited(of_parts);
  });
  return of_gather.value_or(awaited());
}

double HierarchicalMembership::progress(OpNumber number) const {
  if (number < first_op_) return 1;
  if (number >= begun_ops_) return 0;
  const Op& op = op_at(number);
  if (!is_on_one_host() && !sums_by_hosts(op.request))
    return op.of_whole ? whole_->progress(*op.of_whole) : 0;
  double done = op.chunks_done;
  for_each_chunk_of(number, [&](OpNumber of_parts, const ChunkOfOp& chunk) {
    done += progress(of_parts, chunk);
  });
  return done / op.chunks;
}

double HierarchicalMembership::progress(OpNumber number, const ChunkOfOp& chunk) const {
  if (is_on_one_host()) return gather().progress(number);
  if (chunk.has_result) return 1;
  return chunk.at == ChunkOfOp::At::kBetween ? rail().progress(number) : 0;
}

// --------------------------------------------------------------------------------------- the end
void HierarchicalMembership::look_at_parts(Time now) {
  if (!failure_ && whole_->failure()) fail_with(*whole_, now);
  bool is_active = true;
  for (const sluice::Membership* const part : parts()) {
    if (!failure_ && part->failure()) fail_with(*part, now);
    is_active = is_active && part->state() == State::kActive;
  }
  has_joined_ = has_joined_ || is_active;
}

/// The number in the job of a rank of our rail. The aggregator's value may be anything.
Rank HierarchicalMembership::of_rail(Rank host) const {
  return host.value < placement_.hosts() ? placement_.rail(rail_number())[host.value] : rank();
}

/// Ends overdue ops whose time-out no part checks: they wait for a device, for the ops before them,
/// which end first, or for `whole`.
void HierarchicalMembership::end_overdue(Time now) {
  if (is_on_one_host()) return;
  for (OpNumber number = first_op_; number < next_op(); ++number) {
    const Op& op = op_at(number);
    if (now < op.request.timeout.due) continue;
    bool waits = number >= begun_ops_ || op.of_whole || op.chunks_done == op.chunks;
    for_each_chunk_of(number, [&](OpNumber of_parts, const ChunkOfOp& chunk) {
      waits |= chunk.has_result && of_parts >= spread_chunks_;
    });
    if (!waits) continue;
    const auto& of_whole = op.of_whole ? op.of_whole : ops_.front().of_whole;
    const RankSet ranks = of_whole ? whole_->awaited(*of_whole) : RankSet{};
    AbortInfo why{.reason = AbortReason::kOpTimedOut,
                  .rank_a = rank(),
                  .value_a = static_cast<std::uint64_t>(op.request.timeout.limit.count()),
                  .value_b = ranks.size(),
                  .op = number};
    if (!ranks.empty()) why.rank_b = Rank{ranks.lowest()};
    return fail(label_.error_of(why), why, now);
  }
}

/// `whole` and the ranks of this host use the caller's number of an op, and a rail uses the number
/// of a chunk. (The value of an aggregator may be anything.)
void HierarchicalMembership::fail_with(const sluice::Membership& part, Time now) {
  const std::optional<AbortInfo>& why = part.abort_info();
  if (!why) return fail(*part.failure(), why, now);
  const bool is_rail = carries() && &part == &rail();
  const bool is_of_chunk = is_rail && is_of_op(*why);
  const bool is_unknown = is_of_chunk && !has_chunk(why->op);
  if (is_rail && (why->reason == AbortReason::kRankAborted || is_unknown)) {
    cause_due_ = std::min(cause_due_, after(now, kCauseTime));
    if (now < cause_due_) return;
  }
  AbortInfo ours = *why;
  if (is_rail) {
    ours.rank_a = of_rail(why->rank_a);
    ours.rank_b = of_rail(why->rank_b);
  }
  if (is_of_chunk) ours.op = is_unknown ? next_op() : chunk_at(why->op).op;
  const Error error = ours.op == why->op ? *part.failure() : label_.error_of(ours);
  fail(is_rail ? explained(error) : error, ours, now);
}

/// Ends all parts. Other ranks get the reason from `whole`, or on this host from shared memory. A
/// rail cannot carry it, as it has other numbers for ranks.
void HierarchicalMembership::fail(const Error& error, const std::optional<AbortInfo>& why,
                                  Time now) {
  if (failure_) return;
  failure_ = error;
  abort_info_ = why;
  whole_->abort(error, why, now);
  for (sluice::Membership* const part : parts()) {
    const AbortInfo neutral{.reason = AbortReason::kRankAborted, .rank_a = part->rank()};
    part->abort(error, part == parts_.rail.get() ? neutral : why, now);
  }
}

void HierarchicalMembership::leave(Time now, Departure departure) {
  if (failure_ || is_leaving_) return;
  if (!ops_.empty())
    return fail(Error(ErrorCode::kAborted, label_.name() + ": this rank left with ops pending"),
                AbortInfo{.reason = AbortReason::kRankAborted,
                          .rank_a = rank(),
                          .value_a = static_cast<std::uint64_t>(departure)},
                now);
  is_leaving_ = true;
  for (sluice::Membership* const part : parts()) part->leave(now, departure);
  whole_->leave(now, departure);
  end_if_over();
}

void HierarchicalMembership::abort(const Error& why, const std::optional<AbortInfo>& cause,
                                   Time now) {
  if (is_over_) return;
  fail(why, cause ? cause : AbortInfo{.reason = AbortReason::kRankAborted, .rank_a = rank()}, now);
  end_if_over();
}

/// Ops end once nobody can access their tensors any more.
bool HierarchicalMembership::end_if_over() {
  if (is_over_ || !(failure_ || is_leaving_)) return false;
  const auto is_over = [](const sluice::Membership* part) { return part->over(); };
  if (!whole_->over() || !std::ranges::all_of(parts(), is_over)) return false;
  is_over_ = true;
  end_ops();
  return true;
}

void HierarchicalMembership::end_ops() {
  const Error left(ErrorCode::kAborted, label_.name() + ": this rank has left");
  for (; !ops_.empty(); ops_.pop_front(), ++first_op_)
    completions_.push_back(
        {.op = first_op_, .statistics = {}, .error = failure_.value_or(left).of_op(first_op_)});
  begun_ops_ = std::max(begun_ops_, first_op_);
  first_chunk_ = spread_chunks_ = next_chunk();
  chunks_.clear();
}

// -------------------------------------------------------------------------------------- the loop
bool HierarchicalMembership::on_time(Time now) {
  const bool any = whole_->on_time(now);
  return advance(now) || any;
}

// -------------------------------------------------------------------------------------- figures
const Counters& HierarchicalMembership::counters() const {
  counters_ = whole_->counters();
  for (const sluice::Membership* const part : parts()) counters_ += part->counters();
  counters_.ops_completed = ops_completed_;
  counters_.ops_failed = ops_failed_;
  return counters_;
}

std::size_t HierarchicalMembership::running_streams() const {
  std::size_t streams = whole_->running_streams();
  for (const sluice::Membership* const part : parts()) streams += part->running_streams();
  return streams;
}

bool HierarchicalMembership::is_whole() const {
  const auto is_whole = [](const sluice::Membership* part) { return part->is_whole(); };
  return whole_->is_whole() && std::ranges::all_of(parts(), is_whole);
}

std::vector<JobFigures::Path> HierarchicalMembership::paths() const {
  std::vector<JobFigures::Path> all = whole_->paths();
  for (const sluice::Membership* const part : parts()) {
    const std::vector<JobFigures::Path> some = part->paths();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace sluice::worker::hierarchy
