#include "worker/api/communicator.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/random_id.hpp"
#include "common/base/version.hpp"
#include "common/protocol/keyed.hpp"
#include "worker/api/context.hpp"
#include "worker/api/sparse_sum.hpp"
#include "worker/config/worker_settings.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/hierarchy/host_id.hpp"
#include "worker/hierarchy/join.hpp"
#include "worker/host/host_membership.hpp"
#include "worker/loop/aggregator_membership.hpp"

namespace sluice {
namespace {

/// How often a join checks whether it must end, and whether there is something to report.
constexpr std::chrono::milliseconds kJoinLookPeriod{50};
/// How often ops are checked for ranks that they wait for.
constexpr std::chrono::milliseconds kWaitLookPeriod{500};

using wire::Collective;

worker::JobLabel label(const JobId& job) {
  const std::string number = std::to_string(job.number());
  if (job.name().empty()) return {.job = number};
  return {.job = job.name() + " (" + number + ")", .announced_name = job.name()};
}

TimelineJob timeline_job(const JobOptions& options, const worker::JobLabel& label) {
  return {.id = options.job,
          .name = label.name() + ", rank " + std::to_string(options.rank) + " of " +
                  std::to_string(options.world_size)};
}

RankSet ranks_of(const std::vector<std::uint16_t>& numbers) {
  RankSet ranks;
  for (const std::uint16_t number : numbers) ranks.insert(Rank{number});
  return ranks;
}

/// A part of a hierarchical membership. The loop serves it beside the membership itself.
class PartOfHierarchy final : public LoopClient {
 public:
  PartOfHierarchy(Progress& progress, worker::hierarchy::HierarchicalMembership& of,
                  Membership& part, const std::string& whose)
      : progress_(progress), of_(of), part_(part) {
    progress_.add(*this, whose);
  }
  ~PartOfHierarchy() override { progress_.remove(*this); }

  Membership& membership() override { return part_; }
  bool after_turn(Time now) override { return of_.advance(now); }
  // Works belong to the whole membership.
  std::vector<std::uint16_t> stragglers(OpNumber) const override { return {}; }
  double progress(OpNumber) const override { return 0; }
  void set_timeout(OpNumber, const worker::OpTimeout&) override {}

 private:
  Progress& progress_;
  worker::hierarchy::HierarchicalMembership& of_;
  Membership& part_;
};

JobOptions without_secret(JobOptions options) {
  options.secret.clear();
  return options;
}

struct Tensors {
  const void* input = nullptr;
  void* output = nullptr;
  ElementType type = ElementType::kFloat32;
};

worker::OpRequest request(Collective collective, const Tensors& tensors,
                          const MoveOptions& options) {
  worker::OpRequest request;
  request.collective = collective;
  request.type = tensors.type;
  request.input = static_cast<const std::byte*>(tensors.input);
  request.output = static_cast<std::byte*>(tensors.output);
  request.tag = options.tag;
  if (options.device != nullptr) request.device = {.tensors = options.device};
  return request;
}

worker::OpRequest request(Collective collective, const Tensors& tensors,
                          const ReduceOptions& options) {
  worker::OpRequest result = request(collective, tensors, MoveOptions{options.tag, options.device});
  result.reduction = options.reduction;
  result.block_elements = options.block_elements;
  result.nonzero_blocks = options.nonzero_blocks;
  result.encoding = options.encoding;
  result.rounding_seed = options.rounding_seed;
  return result;
}

}  // namespace

Error with(const Error& error, const std::string& more) {
  return Error(error.code(), error.what() + more, error.rank(), error.op(), error.last_heard());
}

// --------------------------------------------------------------------------------------- joining
Communicator::Impl::Impl(std::shared_ptr<Progress> progress, const JobOptions& job)
    : options((validate(job), without_secret(job))),
      label_(label(job.job)),
      progress_(std::move(progress)),
      secret_(secret_of(job)),
      timeline_(progress_->timeline(), timeline_job(options, label_)) {
  join();
}

Communicator::Impl::Impl(std::shared_ptr<Progress> progress, const Split& split)
    : options(split.job()),
      label_(split.label()),
      progress_(std::move(progress)),
      secret_(split.secret),
      timeline_(progress_->timeline(), timeline_job(options, label_)) {
  join();
  progress_->logger()->info("{}: joined as rank {} of {}", label_.name(), options.rank,
                            options.world_size);
}

/// Drives the loop until `done()` or `deadline`, as Progress::drive() does. Logs once, after a
/// while, what it waits for. Throws kAborted if the caller ends the wait.
template <class Done, class Says>
bool Communicator::Impl::await(Done&& done, Time deadline, Says&& waits_for) {
  const Time began = Progress::now();
  Time next_look = after(began, kJoinLookPeriod);
  bool is_told = false;
  bool is_interrupted = false;
  const bool is_done = progress_->drive(
      [&] {
        if (done()) return true;
        const Time now = Progress::now();
        if (now < next_look) return false;
        next_look = after(now, kJoinLookPeriod);
        if (!is_told && now - began >= limits::kSilentWait) {
          is_told = true;
          progress_->logger()->warn("{}: the join has waited {} s for {}", label_.name(),
                                    limits::kSilentWait.count(), waits_for());
        }
        is_interrupted = options.interrupt != nullptr &&
                         __atomic_load_n(options.interrupt, __ATOMIC_RELAXED) != 0;
        return is_interrupted;
      },
      deadline);
  if (!is_interrupted) return is_done;
  throw Error(ErrorCode::kAborted,
              label_.name() + ": the join was interrupted while it waited for " + waits_for());
}

/// If no aggregators are configured, all ranks are on this host.
std::unique_ptr<Membership> Communicator::Impl::begin_to_join(Attachment& attachment, Time now) {
  if (!attachment.has_ports()) {
    if (options.local_world_size != 0 && options.local_world_size < options.world_size)
      throw Error(ErrorCode::kInvalidArgument,
                  label_.name() + ": " + std::to_string(options.local_world_size) + " of " +
                      std::to_string(options.world_size) +
                      " ranks are on this host, and ranks of several hosts need aggregators: set "
                      "ContextOptions::aggregators or SLUICE_AGGREGATORS");
    const ContextOptions& context = progress_->options();
    const std::uint32_t mtu = context.mtu != 0 ? context.mtu : defaults::kVhostMtu;
    return std::make_unique<worker::host::HostMembership>(
        worker::host::HostMembership::Surroundings{
            .host = host_name(),
            .uses_processes = context.host_process_vm,
            .payload_bytes = payload_bytes_of(static_cast<std::uint16_t>(mtu)),
            .logger = progress_->logger()},
        options, label_, secret_, now);
  }
  const std::uint64_t host =
      progress_->options().host_level ? worker::hierarchy::host_id(host_name()) : 0;
  return std::make_unique<AggregatorMembership>(*progress_, attachment, options, label_, secret_,
                                                host, now);
}

const std::string& Communicator::Impl::host_name() const {
  static const std::string unnamed = "localhost";
  const std::string& name = progress_->options().host;
  return name.empty() ? unnamed : name;
}

void Communicator::Impl::join() {
  const Time began = Progress::now();
  hosts_.resize(options.world_size);
  progress_->with_lock([&](Attachment& attachment, Time now) {
    if (attachment.has_ports()) std::iota(hosts_.begin(), hosts_.end(), std::uint16_t{0});
    progress_->joins_as(options.rank, now);
    timeline_.instant("join", {}, now);
    membership_ = begin_to_join(attachment, now);
    try {
      progress_->add(*this, label_.name());
    } catch (const Error&) {  // this context has joined the job already
      membership_.reset();
      throw;
    }
  });
  try {
    await_active();
    if (session_.has_hosts) join_hosts();
  } catch (const Error&) {
    progress_->with_lock([&](Attachment&, Time) {
      parts_.clear();
      progress_->remove(*this);
      membership_.reset();
    });
    throw;
  }
  progress_->with_lock([&](Attachment&, Time now) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - began);
    timeline_.instant(
        "joined", TimelineFacts().add("took_ms", static_cast<std::uint64_t>(took.count())), now);
  });
  tell_builds();
}

/// Waits until the membership is active. Throws the error that ends the join.
void Communicator::Impl::await_active() {
  using State = Membership::State;
  State state = State::kJoining;
  const auto joined = [&] {
    progress_->with_lock([&](Attachment&, Time) { state = membership_->state(); });
    return state != State::kJoining;
  };
  std::optional<Error> interrupted;
  try {
    await(joined, kNever, [&] {  // the membership bounds the wait itself
      return progress_->with_lock([&](Attachment&, Time) { return membership_->waits_for(); });
    });
  } catch (const Error& error) {
    interrupted = error;
  }
  std::optional<Error> failure;
  progress_->with_lock([&](Attachment& attachment, Time now) {
    if (interrupted) membership_->abort(*interrupted, std::nullopt, now);
    failure = membership_->failure();
    if (failure) {
      if (failure->code() == ErrorCode::kAggregatorLost)
        failure = with(*failure, attachment.rival_claims());
      timeline_.failed("join failed", *failure, now);
    } else {
      session_ = membership_->session();
    }
  });
  if (failure) throw Error(*failure);
}

/// Ranks exchange the ids of their hosts. Those on the same host sum among themselves from then on.
void Communicator::Impl::join_hosts() {
  std::uint64_t own = worker::hierarchy::host_id(host_name());
  if (!progress_->options().host_level) own = 0;
  std::vector<std::uint64_t> hosts(options.world_size);
  const std::vector<std::uint64_t> counts(hosts.size(), 1);
  Work told = start(
      request(Collective::kAllGather, {&own, hosts.data(), ElementType::kInt64}, MoveOptions{}),
      counts);
  const auto give_up = [&](const Error& why) {
    progress_->with_lock(
        [&](Attachment&, Time now) { membership_->abort(why, cause_of_abort(), now); });
    told.wait();
  };
  try {
    const auto awaited = [&] { return "rank " + label_.text_of(ranks_of(told.stragglers())); };
    if (!await([&] { return told.done(); }, after(Progress::now(), options.join_timeout),
               [&] { return awaited() + " to tell its host"; }))
      give_up(Error(ErrorCode::kFormationFailed,
                    label_.name() + ": " + awaited() + " did not tell its host within " +
                        std::to_string(options.join_timeout.count()) + " ms"));
  } catch (const Error& interrupted) {
    if (!told.done()) give_up(interrupted);
    throw;
  }
  told.wait();
  const worker::hierarchy::Placement placement(hosts);
  for (std::uint16_t rank = 0; rank < options.world_size; ++rank)
    hosts_[rank] = placement.host_of(Rank{rank});
  progress_->with_lock([&](Attachment&, Time now) {
    std::unique_ptr<AggregatorMembership> whole(
        static_cast<AggregatorMembership*>(membership_.release()));
    auto joined = worker::hierarchy::join({.progress = *progress_,
                                           .host = host_name(),
                                           .join_timeout = options.join_timeout,
                                           .secret = secret_},
                                          label_, placement, std::move(whole), now);
    worker::hierarchy::HierarchicalMembership& hierarchy = *joined;
    membership_ = std::move(joined);
    for (Membership* const part : hierarchy.parts())
      parts_.push_back(
          std::make_unique<PartOfHierarchy>(*progress_, hierarchy, *part, label_.name()));
  });
  await_active();
}

/// A daemon of another build may work well. If something does not, this is the first thing to
/// check.
void Communicator::Impl::tell_builds() {
  std::vector<std::string> others;
  progress_->with_lock([&](Attachment&, Time) { others = membership_->other_builds(); });
  for (const std::string& other : others)
    progress_->logger()->warn("{}: {}, this library of {}: use one build", label_.name(), other,
                              build_id());
}

// ------------------------------------------------------------------------------------------- ops
Work Communicator::Impl::start(worker::OpRequest request, std::span<const std::uint64_t> counts,
                               std::int32_t root) {
  const auto state = new_work();
  start(std::move(request), counts, root, state);
  return Work(state);
}

void Communicator::Impl::start(worker::OpRequest request, std::span<const std::uint64_t> counts,
                               std::int32_t root, const std::shared_ptr<Work::State>& state) {
  if (root < 0 || root >= options.world_size)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name(request.collective)) + ": root " + std::to_string(root) + "; 0.." +
                    std::to_string(options.world_size - 1) + " expected");
  request.root = static_cast<std::uint16_t>(root);
  worker::lay_out(request, {options.rank, options.world_size}, counts);
  worker::check(request, std::string(name(request.collective)), session_);
  worker::begin_copies(request, session_);
  request.timeout = timeout_of(*state);
  progress_->with_lock([&](Attachment&, Time now) { submit(request, counts, state, now); });
}

SplitWork Communicator::Impl::split(SplitKind kind, std::int32_t color, std::int32_t key) {
  const auto state = new_work();
  state->split = std::make_shared<Split>(Split{
      .kind = kind, .parent = options, .parent_label = label_, .secret = secret_, .entries = {}});
  auto& entries = state->split->entries;
  entries.resize(options.world_size);
  SplitEntry& own = entries[options.rank];
  own = {.color = std::max(color, -1), .key = key, .nonce = random_id()};
  constexpr std::uint64_t kElements = sizeof(SplitEntry) / sizeof(std::int64_t);
  const std::vector<std::uint64_t> counts(entries.size(), kElements);
  start(request(Collective::kAllGather, {&own, entries.data(), ElementType::kInt64},
                MoveOptions{.tag = static_cast<std::uint64_t>(kind)}),
        counts, 0, state);
  return SplitWork(state);
}

namespace {

/// More than fits into any memory, and small enough that computations with it do not overflow.
constexpr std::uint64_t kMostRowElements = std::uint64_t{1} << 40;

/// The number of equal parts into which a row is cut to travel.
std::uint64_t parts_of_row(std::uint64_t row_elements, WireType type, const Session& session) {
  std::uint64_t part = std::min<std::uint64_t>(row_elements, most_row_elements(type, session));
  while (row_elements % part != 0) --part;
  return row_elements / part;
}

}  // namespace

SparseWork Communicator::Impl::start(const SparseTensor& tensor, std::uint64_t key_bound,
                                     const SparseOptions& options) {
  const std::string call(name(Collective::kSparseAllReduce));
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, call + ": " + why);
  };
  const auto state = new_work();
  state->sparse = std::make_unique<SparseSums>(tensor.type);
  SparseSums& sparse = *state->sparse;
  sparse.key_bound = key_bound;
  worker::OpRequest request;
  request.collective = Collective::kSparseAllReduce;
  request.type = tensor.type;
  request.reduction = options.reduction;
  request.tag = options.tag;
  request.encoding = options.encoding;
  request.rounding_seed = options.rounding_seed;
  request.timeout = timeout_of(*state);
  worker::KeyedRequest& keyed = request.keyed.emplace();
  keyed.threshold = options.threshold == 0 ? 0 : options.threshold;  // also for -0
  keyed.sums = &sparse.received;
  keyed.key_bound = key_bound;
  worker::check(request, call, session_);  // checks all except keys and rows
  if (tensor.row_elements == 0 || tensor.row_elements > kMostRowElements)
    refuse("row_elements is " + std::to_string(tensor.row_elements) + "; 1..2^40 expected");
  if (tensor.values == nullptr && !tensor.keys.empty()) refuse("the values are null");

  const std::uint64_t parts = parts_of_row(tensor.row_elements, request.wire_type(), session_);
  if (parts > 1 && keyed.threshold != 0)
    refuse("a row of " + std::to_string(tensor.row_elements) + " elements of " +
           std::string(name(tensor.type)) + " does not fit the job's packets of " +
           std::to_string(session_.payload_bytes) + " bytes, so there can be no threshold");
  if (key_bound > (kNoKey - 1) / parts)
    refuse("key_bound is " + std::to_string(key_bound) + ", and each row has " +
           std::to_string(parts) + " parts; at most " + std::to_string((kNoKey - 1) / parts) +
           " expected");
  keyed.row_elements = static_cast<std::uint16_t>(tensor.row_elements / parts);
  const std::size_t pair_bytes =
      sizeof(std::uint64_t) + tensor.row_elements * element_bytes(tensor.type);
  const std::size_t pair_bytes_cut = pair_bytes + (parts - 1) * sizeof(std::uint64_t);
  const std::size_t pairs = std::min(options.result_bytes / pair_bytes,
                                     std::numeric_limits<std::size_t>::max() / pair_bytes_cut);
  keyed.result_bytes = pairs * pair_bytes_cut;
  keyed.keys = tensor.keys;
  keyed.rows = static_cast<const std::byte*>(tensor.values);
  if (options.combine) {
    combine_equal_keys(tensor, options.reduction, sparse);
    keyed.keys = sparse.own_keys;
    keyed.rows = sparse.own_rows.data();
  }
  worker::check(request, call, session_);
  if (parts > 1) {
    sparse.parts = parts;
    cut_rows(keyed.keys, sparse);
    keyed.keys = sparse.own_keys;
    keyed.key_bound *= parts;
  }
  progress_->with_lock([&](Attachment&, Time now) { submit(request, {}, state, now); });
  return SparseWork(state);
}

namespace {

std::string_view name_of(const worker::OpRequest& request, const Work::State& state) {
  if (state.split) return state.split->kind == SplitKind::kSplit ? "split" : "duplicate";
  return name(request.collective);
}

}  // namespace

void Communicator::Impl::submit(const worker::OpRequest& request,
                                std::span<const std::uint64_t> counts,
                                const std::shared_ptr<Work::State>& state, Time now) {
  state->client = this;
  state->recorded = timeline_.called(name_of(request, *state), request, state->started);
  state->op = membership_->submit(request, counts, now);
  state->kind = request.collective;
  if (!request.keyed && !wire::moves(request.collective))
    state->block_bytes = request.wire_type().bytes(
        fitting_block_elements(session_, request.block_elements, request.tensor_type()));
  works_.add(state);
  after_turn(now);
}

Work Communicator::Impl::post(bool sends, std::int32_t peer, worker::OpRequest request,
                              std::uint64_t count) {
  const std::string call = sends ? "send" : "recv";
  if (peer < 0 || peer >= options.world_size || peer == options.rank)
    throw Error(ErrorCode::kInvalidArgument,
                call + ": rank " + std::to_string(peer) + "; another than this rank, " +
                    std::to_string(options.rank) +
                    ", below world_size = " + std::to_string(options.world_size) + " expected");
  const auto end = static_cast<std::uint16_t>(sends ? 0 : 1);
  worker::lay_out(request, {.rank = end, .ranks = 2}, {&count, 1});
  worker::check(request, call, session_);
  worker::begin_copies(request, session_);
  const auto other = static_cast<std::uint16_t>(peer);
  const Route route = sends ? Route{options.rank, other} : Route{other, options.rank};
  const auto state = new_work();
  request.timeout = timeout_of(*state);
  progress_->with_lock([&](Attachment&, Time now) {
    if (membership_->state() == Membership::State::kActive)
      channel_of(route, now).post(request, state, now);
    else
      submit(request, {&count, 1}, state, now);  // the membership gives the reason as an error
  });
  return Work(state);
}

std::shared_ptr<Work::State> Communicator::Impl::new_work() const {
  auto state = std::make_shared<Work::State>();
  state->progress = progress_;
  state->started = Progress::now();
  return state;
}

Channel& Communicator::Impl::channel_of(Route route, Time now) {
  auto found = channels_.find(route);
  if (found == channels_.end()) {
    auto opened = std::make_unique<Channel>(*progress_, route, as_parent(), now);
    found = channels_.emplace(route, std::move(opened)).first;
  }
  return *found->second;
}

bool Communicator::Impl::after_turn(Time now) {
  for (const auto& [route, channel] : channels_)
    if (const auto& why = channel->overdue(); why && !membership_->over())
      membership_->abort(label_.error_of(*why), why, now);
  publish_failure(now);
  record_recovery(now);
  if (now >= wait_.look_due) tell_wait(now);
  if (membership_->has_begun()) works_.run(membership_->take_begun(), now);
  const bool completes = membership_->has_completions();
  if (completes) works_.finish(membership_->take_completions());
  for (const auto& [route, channel] : channels_) {
    if (membership_->failure())
      channel->end(*membership_->failure(), departure(), now);
    else if (channel->waits_in_vain() && membership_->state() == Membership::State::kActive)
      channel->rejoin(as_parent(), now);
  }
  return completes;
}

std::vector<std::uint16_t> Communicator::Impl::stragglers(OpNumber op) const {
  std::vector<std::uint16_t> ranks;
  membership_->awaited(op).for_each([&](Rank rank) { ranks.push_back(rank.value); });
  return ranks;
}

std::vector<std::uint16_t> Communicator::Impl::stragglers() const {
  return progress_->with_lock([&](Attachment&, Time) {
    RankSet awaited = membership_->awaited();
    for (const auto& [route, channel] : channels_)
      if (const auto other = channel->straggler()) awaited.insert(*other);
    std::vector<std::uint16_t> ranks;
    awaited.for_each([&](Rank rank) { ranks.push_back(rank.value); });
    return ranks;
  });
}

std::optional<JobFigures> Communicator::Impl::figures() const {
  JobFigures all{.job = membership_->job(),
                 .rank = membership_->rank(),
                 .ranks = membership_->ranks(),
                 .has_failed = membership_->failure().has_value(),
                 .ops_pending = works_.size(),
                 .running_streams = membership_->running_streams(),
                 .counters = membership_->counters(),
                 .ops = works_.totals()};
  all.paths = membership_->paths();
  return all;
}

JobStatistics Communicator::Impl::statistics() const {
  return progress_->with_lock([&](Attachment&, Time) {
    JobStatistics all;
    const auto add = [&](const worker::Counters& counters, std::size_t pending) {
      all.ops_completed += counters.ops_completed;
      all.ops_failed += counters.ops_failed;
      all.ops_pending += pending;
      all.packets_sent += counters.packets_sent;
      all.packets_received += counters.packets_received;
      all.packets_dropped += counters.drops.total();
      all.retransmissions += counters.data_resent + counters.probes_sent;
      all.narrowed_by_loss += counters.narrowed_by_loss;
      all.narrowed_by_delay += counters.narrowed_by_delay;
      all.rejoins += counters.rejoins;
      all.rounds_replayed += counters.rounds_replayed;
    };
    add(membership_->counters(), works_.size());
    for (const auto& [route, channel] : channels_)
      add(channel->counters(), channel->pending_messages());
    return all;
  });
}

std::uint32_t Communicator::Impl::block_elements(ElementType type, std::uint16_t wanted) {
  if (!is_valid(type))
    throw Error(ErrorCode::kInvalidArgument, "block_elements: none of ElementType");
  return fitting_block_elements(session_, wanted, type);
}

// --------------------------------------------------------------------------------------- leaving
std::optional<Error> Communicator::Impl::leave() {
  bool over = false;
  progress_->with_lock([&](Attachment&, Time now) {
    const bool messages_pending =
        std::any_of(channels_.begin(), channels_.end(),
                    [](const auto& entry) { return entry.second->pending(); });
    if (messages_pending && membership_->state() == Membership::State::kActive)
      membership_->abort(
          Error(ErrorCode::kAborted, label_.name() + ": this rank left with messages pending"),
          cause_of_abort(), now);
    else
      membership_->leave(now, departure());
    after_turn(now);
    if (!membership_->failure())
      for (const auto& [route, channel] : channels_) channel->leave(now, departure());
    over = is_over();
  });
  progress_->drive(
      [&] {
        if (!over) progress_->with_lock([&](Attachment&, Time) { over = is_over(); });
        return over;
      },
      kNever);
  progress_->with_lock([&](Attachment&, Time now) {
    if (!membership_->failure() && !std::exchange(has_left_, true))
      timeline_.instant("left", {}, now);
  });
  return membership_->failure();
}

void Communicator::Impl::abort(std::string_view why) {
  std::string text = label_.name() + ": this rank aborted the job";
  if (!why.empty()) text.append(": ").append(why);
  progress_->with_lock([&](Attachment&, Time now) {
    membership_->abort(Error(ErrorCode::kAborted, text), cause_of_abort(), now);
    after_turn(now);
  });
}

std::optional<AbortInfo> Communicator::Impl::cause_of_abort() const {
  return cause_of(wire::AbortReason::kRankAborted, membership_->rank(), departure());
}

/// Called before any op ends with the failure, so that a caller whose op has failed finds it.
void Communicator::Impl::publish_failure(Time now) {
  if (!membership_->failure() || has_failed_.load(std::memory_order_relaxed)) return;
  failure_ = membership_->failure();
  has_failed_.store(true, std::memory_order_release);
  timeline_.failed("job failed", *failure_, now);
}

/// Logs once that ops wait for other ranks, until a result comes again.
void Communicator::Impl::tell_wait(Time now) {
  wait_.look_due = after(now, kWaitLookPeriod);
  const RankSet awaited = membership_->awaited();
  const std::uint64_t results = membership_->counters().results_applied;
  if (awaited.empty() || wait_.since == kNever || results != wait_.results) {
    wait_ = {
        .look_due = wait_.look_due, .since = awaited.empty() ? kNever : now, .results = results};
    return;
  }
  if (wait_.is_told || now - wait_.since < limits::kSilentWait) return;
  wait_.is_told = true;
  progress_->logger()->warn("{}: ops pending: {}; they have waited {} s for rank {}", label_.name(),
                            works_.size(), limits::kSilentWait.count(), label_.text_of(awaited));
}

/// Records when an aggregator is lost, and when all aggregators have this rank as a member again.
void Communicator::Impl::record_recovery(Time now) {
  const worker::Counters& counters = membership_->counters();
  const bool begins = counters.rejoins != rejoins_recorded_;
  rejoins_recorded_ = counters.rejoins;
  if (begins && !std::exchange(is_recovering_, true))
    timeline_.instant("recovery begins", TimelineFacts().add("rejoins", counters.rejoins), now);
  if (!is_recovering_ || !membership_->is_whole()) return;
  is_recovering_ = false;
  timeline_.instant("recovered",
                    TimelineFacts()
                        .add("rejoins", counters.rejoins)
                        .add("rounds_replayed", counters.rounds_replayed),
                    now);
}

std::optional<Error> Communicator::Impl::failure() const {
  return has_failed_.load(std::memory_order_acquire) ? failure_ : std::nullopt;
}

bool Communicator::Impl::is_over() const {
  return membership_->over() && std::all_of(channels_.begin(), channels_.end(),
                                            [](const auto& entry) { return entry.second->over(); });
}

Communicator::Impl::~Impl() {
  if (progress_->inherited()) {  // the membership and the buffers belong to the parent process
    static_cast<void>(membership_.release());
    static_cast<void>(new auto(std::move(channels_)));
    static_cast<void>(new auto(std::move(parts_)));
    return;
  }
  if (std::uncaught_exceptions() > exceptions_at_start_) note_exception();
  leave();
  progress_->with_lock([&](Attachment&, Time) {
    channels_.clear();
    parts_.clear();
    progress_->remove(*this);
    membership_.reset();
  });
}

// -------------------------------------------------------------------------------- the public API
Communicator::Communicator(Context& context, JobOptions options)
    : impl_(std::make_unique<Impl>(context.impl().progress, options)) {}
Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

std::uint16_t Communicator::rank() const {
  return impl_->options.rank;
}
std::uint16_t Communicator::world_size() const {
  return impl_->options.world_size;
}
std::uint32_t Communicator::job_id() const {
  return impl_->options.job;
}
std::uint32_t Communicator::block_elements(ElementType type, std::uint16_t wanted) const {
  return impl_->block_elements(type, wanted);
}

Work Communicator::all_reduce(const void* input, void* output, std::uint64_t element_count,
                              ElementType type, const ReduceOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kAllReduce, tensors, options), {&element_count, 1});
}

SparseWork Communicator::all_reduce(const SparseTensor& tensor, std::uint64_t key_bound,
                                    const SparseOptions& options) {
  return impl_->start(tensor, key_bound, options);
}

Work Communicator::reduce(const void* input, void* output, std::uint64_t element_count,
                          ElementType type, std::int32_t root, const ReduceOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kReduce, tensors, options), {&element_count, 1}, root);
}

Work Communicator::reduce_scatter(const void* input, void* output,
                                  std::span<const std::uint64_t> counts, ElementType type,
                                  const ReduceOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kReduceScatter, tensors, options), counts);
}

Work Communicator::broadcast(void* tensor, std::uint64_t element_count, ElementType type,
                             std::int32_t root, const MoveOptions& options) {
  const Tensors tensors{tensor, tensor, type};
  return impl_->start(request(Collective::kBroadcast, tensors, options), {&element_count, 1}, root);
}

Work Communicator::all_gather(const void* input, void* output,
                              std::span<const std::uint64_t> counts, ElementType type,
                              const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kAllGather, tensors, options), counts);
}

Work Communicator::gather(const void* input, void* output, std::span<const std::uint64_t> counts,
                          ElementType type, std::int32_t root, const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kGather, tensors, options), counts, root);
}

Work Communicator::scatter(const void* input, void* output, std::span<const std::uint64_t> counts,
                           ElementType type, std::int32_t root, const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kScatter, tensors, options), counts, root);
}

Work Communicator::all_to_all(const void* input, void* output,
                              std::span<const std::uint64_t> counts, ElementType type,
                              const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kAllToAll, tensors, options), counts);
}

Work Communicator::barrier() {
  const std::uint64_t nothing = 0;
  return impl_->start(request(Collective::kBarrier, Tensors{}, MoveOptions{}), {&nothing, 1});
}

Work Communicator::send(const void* tensor, std::uint64_t element_count, ElementType type,
                        std::int32_t to, const MoveOptions& options) {
  const Tensors tensors{tensor, nullptr, type};
  return impl_->post(true, to, request(Collective::kBroadcast, tensors, options), element_count);
}

Work Communicator::recv(void* tensor, std::uint64_t element_count, ElementType type,
                        std::int32_t from, const MoveOptions& options) {
  const Tensors tensors{nullptr, tensor, type};
  return impl_->post(false, from, request(Collective::kBroadcast, tensors, options), element_count);
}

SplitWork Communicator::split(std::int32_t color, std::int32_t key) {
  return impl_->split(SplitKind::kSplit, color, key);
}

SplitWork Communicator::duplicate() {
  return impl_->split(SplitKind::kDuplicate, 0, 0);
}

void Communicator::leave() {
  if (const auto error = impl_->leave()) throw Error(*error);
}

void Communicator::abort(std::string_view why) {
  impl_->abort(why);
}

void Communicator::note_exception() noexcept {
  impl_->note_exception();
}

std::vector<std::uint16_t> Communicator::hosts() const {
  return impl_->hosts();
}

std::vector<std::uint16_t> Communicator::stragglers() const {
  return impl_->stragglers();
}

JobStatistics Communicator::statistics() const {
  return impl_->statistics();
}

std::optional<Error> Communicator::failure() const {
  return impl_->failure();
}

}  // namespace sluice
