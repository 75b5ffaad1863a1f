#include "worker/host/membership.hpp"

#include <algorithm>
#include <utility>

#include "common/base/version.hpp"
#include "common/protocol/geometry.hpp"

namespace sluice::worker::host {
namespace {

/// How often a rank that is busy looks whether a mate's process is gone.
constexpr Duration kLookPeriod = std::chrono::milliseconds(1);
/// Of a pair: the job's own failure bounds the wait.
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
Membership::Membership(Surroundings surroundings, const JobOptions& options, KnownAs known_as,
                       std::shared_ptr<const Secret> secret, Time now)
    : surroundings_(std::move(surroundings)),
      known_as_(std::move(known_as)),
      secret_(std::move(secret)),
      ranks_(first_ranks(options.world_size)),
      self_(options.rank),
      session_(session_of(options.job, options.world_size, options.block_elements,
                          surroundings_.payload_bytes)),
      join_timeout_(options.join_timeout),
      deadline_(after(now, options.join_timeout)) {
  form(now);
}

Membership::Membership(const Membership& of, const Pair& pair, Time now)
    : surroundings_(of.surroundings_),
      known_as_(pair.alias),
      secret_(of.secret_),
      ranks_(first_ranks(2)),
      self_(of.rank() == pair.first ? 0 : 1),
      session_(session_of(pair.job, 2, of.session_.block_elements, of.session_.payload_bytes)),
      join_timeout_(of.join_timeout_),
      deadline_(kAsLongAsTheJobLives) {
  form(now);
}

std::unique_ptr<sluice::Membership> Membership::join_pair(const Pair& pair, Time now) {
  return std::unique_ptr<sluice::Membership>(new Membership(*this, pair, now));
}

GroupConfig Membership::group_config() const {
  GroupConfig config;
  config.alias = known_as_;
  config.job = session_.job;
  config.host = surroundings_.host;
  config.ranks = ranks_;
  config.self = self_;
  config.directory = sockets_directory();
  config.secret = secret_;
  config.build = build_id();
  config.world_size = session_.ranks;
  config.block_elements = session_.block_elements;
  config.payload_bytes = session_.payload_bytes;
  return config;
}

void Membership::form(Time now) {
  try {
    group_ = std::make_unique<Group>(group_config());
    on_time(now);
  } catch (const Error& error) {
    fail(Error(error.code(), known_as_.name() + ": " + error.what()));
  }
}

/// All have come.
void Membership::start() {
  const BoardSizes sizes;
  session_.generation = group_->nonce();
  board_.emplace(sizes, group_->memory(), self_,
                 MappedBoard::Calls{
                     .find_region = [this](LocalRank mate,
                                           std::uint64_t id) { return group_->region(mate, id); },
                     .wake = [this](LocalRank mate) { group_->wake(mate); },
                     .part = [this] { tell_stopped(); }});
  Config config;
  config.alias = known_as_;
  config.ranks = ranks_;
  config.self = self_;
  config.sizes = sizes;
  config.block_elements = [this](ElementType type, std::uint16_t wanted) -> std::uint32_t {
    return fitting_block_elements(session_, wanted, type);
  };
  config.place_of = [this](std::span<const std::byte> tensor) { return group_->place_of(tensor); };
  engine_ = std::make_unique<Engine>(std::move(config), *board_);
  engine_->tell_begun(tells_begun_);
}

std::string Membership::waits_for() const {
  if (!group_) return "the ranks of this host";
  const RankSet missing = group_->missing();
  return "rank " + known_as_.text_of(missing) + " to join on this host";
}

void Membership::fail(const Error& error, const std::optional<AbortInfo>& why) {
  if (failure_) return;
  failure_ = error;
  abort_info_ = why;
}

Membership::State Membership::state() const {
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
/// None where all ranks hold and want the whole tensor.
std::vector<Part> Membership::parts_of(const OpRequest& request,
                                       std::span<const std::uint64_t> counts) const {
  using wire::Collective;
  if (request.collective == Collective::kAllReduce || request.collective == Collective::kBarrier)
    return {};
  std::vector<Part> parts;
  for (std::uint16_t rank = 0; rank < session_.ranks; ++rank) {
    OpRequest of_rank;
    of_rank.collective = request.collective;
    of_rank.root = request.root;
    lay_out(of_rank, {rank, session_.ranks}, counts);
    parts.push_back({of_rank.held, std::move(of_rank.wanted)});
  }
  return parts;
}

std::string Membership::why_not(const OpRequest& request) const {
  if (request.keyed)
    return "sums of pairs need aggregators still: set ContextOptions::aggregators or "
           "SLUICE_AGGREGATORS";
  if (request.device)
    return "tensors on a device need aggregators still: set ContextOptions::aggregators or "
           "SLUICE_AGGREGATORS";
  return "";
}

OpNumber Membership::submit(const OpRequest& request, std::span<const std::uint64_t> counts,
                            Time now) {
  if (!engine_) {
    refused_.push_back(
        {.op = refused_ops_, .statistics = {}, .error = failure_->of_op(refused_ops_)});
    return refused_ops_++;
  }
  const OpNumber op = engine_->submit(request, parts_of(request, counts));
  on_time(now);
  return op;
}

std::vector<Completion> Membership::take_completions() {
  std::vector<Completion> all = engine_ ? engine_->take_completions() : std::exchange(refused_, {});
  for (const Completion& completion : all)
    ++(completion.error ? counters_.ops_failed : counters_.ops_completed);
  return all;
}

void Membership::tell_begun(bool is_told) {
  tells_begun_ = is_told;
  if (engine_) engine_->tell_begun(is_told);
}

// --------------------------------------------------------------------------------------- the end
void Membership::leave(Time now, Departure departure) {
  if (engine_) {
    engine_->leave(now, departure);
    board_->wake_mates();
  } else {
    has_left_ = true;
  }
  close_if_over();
}

void Membership::abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) {
  if (!engine_) {
    fail(why, cause);
    return close_if_over();
  }
  const AbortInfo by_us{.reason = wire::AbortReason::kRankAborted, .rank_a = rank()};
  engine_->abort(why, cause.value_or(by_us), now);
  board_->wake_mates();
}

/// The rank may join again beside this object.
void Membership::close_if_over() {
  if (over() && group_) group_->close();
}

/// The job is over here, and a mate that was stopped may go on in the middle of a piece.
void Membership::tell_stopped() const {
  surroundings_.logger->warn(
      "{}: the job has failed, and a rank that is stopped does not say that it has ended: if it "
      "goes "
      "on, it may still write to tensors of the ops that failed",
      known_as_.name());
}

// -------------------------------------------------------------------------------------- the loop
void Membership::look_at_group(Time now) {
  look_due_ = after(now, kLookPeriod);
  group_->poll(now);
  if (!engine_) {
    if (group_->state() == Group::State::kFailed)
      return fail(*group_->failure(), group_->abort_info());
    if (group_->state() == Group::State::kFormed) return start();
    if (now < deadline_) return;
    const std::string problem = group_->problem().empty() ? "" : " (" + group_->problem() + ")";
    return fail(Error(ErrorCode::kFormationFailed,
                      known_as_.name() + ": rank " + known_as_.text_of(group_->missing()) +
                          " did not join on this host within " +
                          std::to_string(join_timeout_.count()) + " ms" + problem +
                          "; ranks of several hosts need aggregators: set "
                          "ContextOptions::aggregators or SLUICE_AGGREGATORS"));
  }
  for (const LocalRank mate : group_->take_lost()) engine_->lost(mate, now);
  if (engine_->pending_ops() == 0) group_->forget_retired();
}

bool Membership::on_time(Time now) {
  if (over()) return false;
  if (now >= look_due_ || is_asleep_) look_at_group(now);
  if (!engine_) {
    close_if_over();
    return false;
  }
  const bool any = engine_->turn(now);
  board_->wake_mates();
  close_if_over();
  if (any && std::exchange(is_asleep_, false)) board_->wake_up();
  return any;
}

bool Membership::arm(net::RxEvents& events) {
  if (over()) return true;
  if (!engine_) return false;  // it seeks mates
  if (!events.add(group_->descriptor())) return false;
  board_->fall_asleep();
  is_asleep_ = true;
  return true;
}

}  // namespace sluice::worker::host
