#include "worker/host/host_membership.hpp"

#include <algorithm>
#include <utility>

#include "common/base/version.hpp"
#include "common/protocol/geometry.hpp"
#include "worker/host/keyed_sum.hpp"

namespace sluice::worker::host {
namespace {

/// How often a busy rank checks whether the process of a peer has ended.
constexpr Duration kLookPeriod = std::chrono::milliseconds(1);
/// From this size on, copies between processes are faster than copies through slots
/// (docs/hosts.md).
constexpr std::uint64_t kLeastRemoteBytes = std::uint64_t{16} << 10;
/// The deadline of a pair of ranks: the failure of its job ends the wait.
constexpr Time kAsLongAsTheJobLives = kNever;

Session session_of(std::uint32_t job, std::uint16_t ranks, std::uint16_t block_elements,
                   std::uint16_t payload_bytes) {
  Session session;
  session.job = job;
  session.ranks = ranks;
  session.streams = 1;
  session.history = 1;
  session.block_elements = block_elements;
  session.payload_bytes = payload_bytes;
  return session;
}

std::vector<Rank> first_ranks(std::uint16_t count) {
  std::vector<Rank> ranks;
  for (std::uint16_t rank = 0; rank < count; ++rank) ranks.push_back(Rank{rank});
  return ranks;
}

}  // namespace

// --------------------------------------------------------------------------------------- joining
HostMembership::HostMembership(Surroundings surroundings, Ranks ranks, JobLabel label,
                               std::shared_ptr<const Secret> secret, Time now)
    : surroundings_(std::move(surroundings)),
      label_(std::move(label)),
      secret_(std::move(secret)),
      ranks_(std::move(ranks)),
      session_(session_of(ranks_.job, static_cast<std::uint16_t>(ranks_.all.size()),
                          ranks_.block_elements, surroundings_.payload_bytes)),
      deadline_(after(now, ranks_.join_timeout)) {
  form(now);
}

HostMembership::Ranks HostMembership::ranks_of(const JobOptions& options) {
  return {.job = options.job,
          .all = first_ranks(options.world_size),
          .self = options.rank,
          .of_job = options.world_size,
          .block_elements = options.block_elements,
          .join_timeout = options.join_timeout,
          .advice =
              "ranks of several hosts need aggregators: set ContextOptions::aggregators or "
              "SLUICE_AGGREGATORS"};
}

HostMembership::HostMembership(Surroundings surroundings, const JobOptions& options, JobLabel label,
                               std::shared_ptr<const Secret> secret, Time now)
    : HostMembership(std::move(surroundings), ranks_of(options), std::move(label),
                     std::move(secret), now) {}

HostMembership::HostMembership(const HostMembership& of, const Pair& pair, Time now)
    : surroundings_(of.surroundings_),
      label_(pair.alias),
      secret_(of.secret_),
      ranks_({.job = pair.job,
              .all = first_ranks(2),
              .self = static_cast<LocalRank>(of.rank() == pair.first ? 0 : 1),
              .of_job = 2,
              .block_elements = of.session_.block_elements,
              .join_timeout = of.ranks_.join_timeout,
              .advice = of.ranks_.advice}),
      session_(session_of(pair.job, 2, of.session_.block_elements, of.session_.payload_bytes)),
      deadline_(kAsLongAsTheJobLives) {
  form(now);
}

std::unique_ptr<sluice::Membership> HostMembership::join_pair(const Pair& pair, Time now) {
  return std::unique_ptr<sluice::Membership>(new HostMembership(*this, pair, now));
}

GroupConfig HostMembership::group_config() const {
  GroupConfig config;
  config.alias = label_;
  config.job = session_.job;
  config.host = surroundings_.host;
  config.ranks = ranks_.all;
  config.self = ranks_.self;
  if (ranks_.all.size() > 1) config.directory = sockets_directory();
  config.secret = secret_;
  config.build = build_id();
  config.uses_processes = surroundings_.uses_processes;
  config.world_size = session_.ranks;
  config.block_elements = session_.block_elements;
  config.payload_bytes = session_.payload_bytes;
  return config;
}

void HostMembership::form(Time now) {
  try {
    group_ = std::make_unique<Group>(group_config());
    on_time(now);
  } catch (const Error& error) {
    fail(Error(error.code(), label_.name() + ": " + error.what()));
  }
}

/// Starts the engine, once all ranks have come.
void HostMembership::start() {
  const BoardSizes sizes;
  session_.generation = group_->nonce();
  board_.emplace(sizes, group_->memory(), ranks_.self,
                 MappedBoard::Calls{
                     .find_region = [this](LocalRank peer,
                                           std::uint64_t id) { return group_->region(peer, id); },
                     .process_of = [this](LocalRank peer) { return group_->process_memory(peer); },
                     .wake = [this](LocalRank peer) { group_->wake(peer); },
                     .part = [this] { tell_stopped(); }});
  Config config;
  config.alias = label_;
  config.ranks = ranks_.all;
  config.self = ranks_.self;
  config.divisor = ranks_.of_job;
  config.sizes = sizes;
  config.block_elements = [this](ElementType type, std::uint16_t wanted) -> std::uint32_t {
    return fitting_block_elements(session_, wanted, type);
  };
  config.place_of = [this](std::span<const std::byte> tensor) { return group_->place_of(tensor); };
  if (is_reached()) config.least_remote_bytes = kLeastRemoteBytes;
  engine_ = std::make_unique<Engine>(std::move(config), *board_);
  engine_->notify_begun(notifies_begun_);
  ops_.emplace(*engine_, label_, rank(), session_.ranks);
}

/// Whether the other ranks read and write this process's memory. If not, the warning appears once
/// per job, not once for each pair of its ranks.
bool HostMembership::is_reached() const {
  const std::string why = group_->why_not_reached();
  if (why.empty()) return true;
  const bool is_pair = deadline_ == kAsLongAsTheJobLives;
  surroundings_.logger->log(
      is_pair || !surroundings_.uses_processes ? spdlog::level::debug : spdlog::level::warn,
      "{}: other ranks of this host cannot access this process's memory ({}): tensors that are not "
      "from sluice::allocate are copied through slots, which takes longer",
      label_.name(), why);
  return false;
}

std::string HostMembership::waits_for() const {
  if (!group_) return "the ranks of this host";
  const RankSet missing = group_->missing();
  return "rank " + label_.text_of(missing) + " to join on this host";
}

void HostMembership::fail(const Error& error, const std::optional<AbortInfo>& why) {
  if (failure_) return;
  failure_ = error;
  abort_info_ = why;
}

HostMembership::State HostMembership::state() const {
  if (!engine_) return failure_ ? State::kFailed : has_left_ ? State::kLeft : State::kJoining;
  switch (engine_->state()) {
    case Engine::State::kActive:
      return State::kActive;
    case Engine::State::kEnding:
      return State::kLeaving;
    case Engine::State::kOver:
      break;
  }
  return engine_->failure() ? State::kFailed : State::kLeft;
}

// ------------------------------------------------------------------------------------------- ops
OpNumber HostMembership::submit(const OpRequest& request, std::span<const std::uint64_t> counts,
                                Time now) {
  if (request.keyed)
    return submit(HostOpQueue::call_of(std::make_unique<KeyedSum>(
                      request, session_,
                      KeyedRanks{ranks_.all, ranks_.self, session_.ranks, ranks_.of_job, pairs_})),
                  now);
  return submit({.request = request, .counts = {counts.begin(), counts.end()}}, now);
}

OpNumber HostMembership::submit(const OpRequest& request, std::vector<Part> parts, Time now) {
  return submit({.request = request, .parts = std::move(parts)}, now);
}

OpNumber HostMembership::submit(MoveSequence& moves, Time now) {
  return submit(HostOpQueue::call_of(moves), now);
}

OpNumber HostMembership::submit(HostOpQueue::Call&& call, Time now) {
  if (!ops_) {
    const OpNumber op = next_op_++;
    completions_.push_back({.op = op, .statistics = {}, .error = failure_->of_op(op)});
    return op;
  }
  const OpNumber op = ops_->submit(std::move(call), now);
  board_->wake_peers();
  on_time(now);
  return op;
}

void HostMembership::set_timeout(OpNumber op, const OpTimeout& timeout) {
  ops_->set_timeout(op, timeout);
}

std::vector<Completion> HostMembership::take_completions() {
  std::vector<Completion> all = ops_ ? ops_->take_completions() : std::exchange(completions_, {});
  for (const Completion& completion : all)
    ++(completion.error ? counters_.ops_failed : counters_.ops_completed);
  return all;
}

void HostMembership::notify_begun(bool is_wanted) {
  notifies_begun_ = is_wanted;
  if (engine_) engine_->notify_begun(is_wanted);
}

// --------------------------------------------------------------------------------------- the end
void HostMembership::leave(Time now, Departure departure) {
  if (engine_) {
    engine_->leave(now, departure);
    ops_->collect(now);
    board_->wake_peers();
  } else {
    has_left_ = true;
  }
  close_if_over();
}

void HostMembership::abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) {
  if (!engine_) {
    fail(why, cause);
    return close_if_over();
  }
  const AbortInfo by_us{.reason = wire::AbortReason::kRankAborted, .rank_a = rank()};
  engine_->abort(why, cause.value_or(by_us), now);
  board_->wake_peers();
}

/// Frees the sockets, so that the rank may join again beside this object.
void HostMembership::close_if_over() {
  if (over() && group_) group_->close();
}

/// The job is over here, but a rank that was stopped may continue in the middle of a piece.
void HostMembership::tell_stopped() const {
  surroundings_.logger->warn(
      "{}: the job has failed, and a rank that is stopped does not say that it has ended: if it "
      "goes "
      "on, it may still write to tensors of the ops that failed",
      label_.name());
}

// -------------------------------------------------------------------------------------- the loop
void HostMembership::look_at_group(Time now) {
  look_due_ = after(now, kLookPeriod);
  group_->poll(now);
  if (!engine_) {
    if (group_->state() == Group::State::kFailed)
      return fail(*group_->failure(), group_->abort_info());
    if (group_->state() == Group::State::kFormed) return start();
    if (now < deadline_) return;
    const std::string problem = group_->problem().empty() ? "" : " (" + group_->problem() + ")";
    return fail(Error(ErrorCode::kFormationFailed, label_.name() + ": rank " +
                                                       label_.text_of(group_->missing()) +
                                                       " did not join on this host within " +
                                                       std::to_string(ranks_.join_timeout.count()) +
                                                       " ms" + problem + "; " + ranks_.advice));
  }
  for (const LocalRank peer : group_->take_lost()) engine_->lost(peer, now);
  if (engine_->pending_ops() == 0) group_->forget_retired();
}

bool HostMembership::on_time(Time now) {
  if (over()) return false;
  if (now >= look_due_ || is_asleep_) look_at_group(now);
  if (!engine_) {
    close_if_over();
    return false;
  }
  const bool any = ops_->turn(now);
  board_->wake_peers();
  close_if_over();
  if (any && std::exchange(is_asleep_, false)) board_->wake_up();
  return any;
}

bool HostMembership::arm(net::RxEvents& events) {
  if (over()) return true;
  if (!engine_) return false;  // the group is not complete yet
  if (!events.add(group_->descriptor())) return false;
  board_->fall_asleep();
  is_asleep_ = true;
  return true;
}

}  // namespace sluice::worker::host
