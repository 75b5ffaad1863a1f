#include "tests/sim/host_sums.hpp"

#include <algorithm>
#include <utility>

#include "common/protocol/geometry.hpp"
#include "tests/sim/bug.hpp"
#include "worker/host/keyed_sum.hpp"

namespace sluice::sim {

using worker::host::Engine;
using worker::host::HostOpQueue;
using worker::host::KeyedRanks;
using worker::host::KeyedSum;
using worker::host::MoveSequence;
using worker::host::Part;

// ---------------------------------------------------------------------------------------- groups
void HostGroup::come(LocalRank rank, Seat seat) {
  require(!seats_[rank].has_come, "a rank joins its host twice");
  seats_[rank] = std::move(seat);
  seats_[rank].has_come = true;
  on_change(rank);
}

void HostGroup::close(LocalRank rank) {
  if (std::exchange(seats_[rank].is_closed, true)) return;
  on_change(rank);
  seats_[rank].step = seats_[rank].wake = nullptr;
}

bool HostGroup::have_all_come() const {
  return std::ranges::all_of(seats_, [](const Seat& seat) { return seat.has_come; });
}

void HostGroup::on_step(LocalRank rank) {
  if (seats_[rank].step) seats_[rank].step();
}

void HostGroup::on_change(LocalRank rank) {
  for (LocalRank peer = 0; peer < seats_.size(); ++peer)
    if (peer != rank && seats_[peer].wake) seats_[peer].wake();
}

// ------------------------------------------------------------------------------------ membership
HostSums::HostSums(std::shared_ptr<HostGroup> group, Config config, HostGroup::Seat seat,
                   Random random)
    : group_(std::move(group)),
      config_(std::move(config)),
      random_(random),
      session_(config_.session),
      board_(group_->board_of(config_.self)),
      lost_due_(config_.ranks.size(), kNever) {
  session_.ranks = static_cast<std::uint16_t>(config_.ranks.size());
  group_->come(config_.self, std::move(seat));
}

HostSums::~HostSums() {
  group_->close(config_.self);
}

void HostSums::start() {
  worker::host::Config config;
  config.alias = config_.alias;
  config.ranks = config_.ranks;
  config.self = config_.self;
  config.divisor = config_.of_job;
  config.sizes = group_->sizes;
  config.least_piece_bytes = group_->least_piece_bytes;
  config.block_elements = [this](ElementType type, std::uint16_t wanted) -> std::uint32_t {
    return fitting_block_elements(session_, wanted, type);
  };
  config.place_of = [this](std::span<const std::byte> tensor) { return place_of(tensor); };
  config.least_remote_bytes = random_.pick<std::uint64_t>({0, 500, config.kNotReached});
  engine_ = std::make_unique<Engine>(std::move(config), *board_);
  ops_.emplace(*engine_, config_.alias, rank(), session_.ranks);
}

Membership::State HostSums::state() const {
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

Time HostSums::next_deadline() const {
  if (over()) return kNever;
  Time due = engine_ ? engine_->next_deadline() : std::min(formed_due_, config_.deadline);
  for (const Time lost : lost_due_)
    if (lost != Time{}) due = std::min(due, lost);
  return due;
}

class HostSums::Mapped {
 public:
  /// Maps what the request reads and writes.
  Mapped(HostSums& sums, const worker::OpRequest& request) : sums_(sums) {
    const std::size_t size = element_bytes(request.type);
    const worker::ElementRange whole{0, request.element_count};
    const worker::ElementRange held = request.held.value_or(whole);
    std::uint64_t wanted = 0;
    for (const auto& range : request.wanted.value_or(std::vector{whole}))
      wanted += range.end - range.begin;
    map({const_cast<std::byte*>(request.input), (held.end - held.begin) * size});
    map({request.output, wanted * size});
  }
  ~Mapped() {
    for (const std::span<std::byte> memory : tensors_) {
      sums_.group_->unmap(sums_.config_.self, memory);
      sums_.mapped_.erase(std::ranges::find(sums_.mapped_, memory.data(),
                                            [](const auto& each) { return each.data(); }));
    }
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  void map(std::span<std::byte> memory) {
    if (memory.empty()) return;
    sums_.group_->map(sums_.config_.self, memory);
    sums_.mapped_.push_back(memory);
    tensors_.push_back(memory);
  }

  HostSums& sums_;
  std::vector<std::span<std::byte>> tensors_;
};

class HostSums::MappedMoves final : public MoveSequence {
 public:
  MappedMoves(HostSums& sums, MoveSequence& moves) : sums_(sums), moves_(moves) {}
  MappedMoves(HostSums& sums, std::unique_ptr<MoveSequence> moves)
      : sums_(sums), owned_(std::move(moves)), moves_(*owned_) {}

  const Move& next(OpNumber number) override {
    const Move& move = moves_.next(number);
    tensors_.emplace(sums_, move.request);
    return move;
  }
  std::optional<AbortInfo> end_move() override {
    tensors_.reset();
    return moves_.end_move();
  }
  void reach(worker::host::PeerAccess&) override {
    if (sums_.random_.chance(0.7)) moves_.reach(sums_.peers_);
  }
  bool is_first() const override { return moves_.is_first(); }
  bool is_done() const override { return moves_.is_done(); }
  void set_timeout(const worker::OpTimeout& timeout) override { moves_.set_timeout(timeout); }
  const worker::OpRequest& request() const override { return moves_.request(); }
  std::optional<Error> finish() override { return moves_.finish(); }
  OpStatistics statistics() const override { return moves_.statistics(); }

 private:
  HostSums& sums_;
  const std::unique_ptr<MoveSequence> owned_;
  MoveSequence& moves_;
  std::optional<Mapped> tensors_;
};

OpNumber HostSums::submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
                          Time now) {
  if (request.keyed) {
    auto sum = std::make_unique<KeyedSum>(
        request, session_, KeyedRanks{config_.ranks, config_.self, session_.ranks, config_.of_job});
    return submit(HostOpQueue::call_of(std::make_unique<MappedMoves>(*this, std::move(sum))), now);
  }
  return submit({.request = request, .counts = {counts.begin(), counts.end()}}, now);
}

OpNumber HostSums::submit(const worker::OpRequest& request, std::vector<Part> parts, Time now) {
  return submit({.request = request, .parts = std::move(parts)}, now);
}

OpNumber HostSums::submit(MoveSequence& moves, Time now) {
  return submit(HostOpQueue::call_of(std::make_unique<MappedMoves>(*this, moves)), now);
}

OpNumber HostSums::submit(HostOpQueue::Call&& call, Time now) {
  const OpNumber op = next_op_++;
  if (!ops_) {
    completions_.push_back({.op = op, .statistics = {}, .error = failure_->of_op(op)});
    return op;
  }
  if (!call.moves) tensors_.emplace(op, std::make_unique<Mapped>(*this, call.request));
  require(ops_->submit(std::move(call), now) == op, "an op has another number");
  collect();
  on_time(now);
  return op;
}

std::optional<worker::host::Place> HostSums::place_of(std::span<const std::byte> tensor) {
  if (random_.chance(0.4)) return std::nullopt;
  for (const std::span<std::byte> memory : mapped_) {
    if (memory.data() != tensor.data() || tensor.size() > memory.size()) continue;
    regions_.push_back(group_->share(config_.self, memory));
    return worker::host::Place{regions_.back(), 0};
  }
  throw Bug("a tensor is shared that is of no open op");
}

std::optional<worker::host::Place> HostSums::Peers::place_of(std::span<const std::byte> bytes) {
  if (sums_.random_.chance(0.1)) return std::nullopt;
  const std::span memory(const_cast<std::byte*>(bytes.data()), bytes.size());
  regions_.push_back(sums_.group_->share(sums_.config_.self, memory));
  return worker::host::Place{regions_.back(), 0};
}

HostSums::Peers::~Peers() {
  for (const std::uint64_t region : regions_)
    sums_.group_->share_no_more(sums_.config_.self, region);
}

const std::byte* HostSums::Peers::read_at(worker::host::LocalRank peer,
                                          const worker::host::Place& place, std::uint64_t bytes) {
  return sums_.board_->bytes_at(peer, place, bytes);
}

void HostSums::collect() {
  for (worker::Completion& completion : ops_->take_completions()) {
    tensors_.erase(completion.op);
    completions_.push_back(std::move(completion));
  }
  if (engine_->pending_ops() != 0) return;
  for (const std::uint64_t region : std::exchange(regions_, {}))
    group_->share_no_more(config_.self, region);
}

void HostSums::leave(Time now, Departure departure) {
  if (engine_) {
    engine_->leave(now, departure);
    ops_->collect(now);
    collect();
  } else {
    has_left_ = true;
  }
  close_if_over();
}

void HostSums::abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) {
  if (over()) return;
  if (!engine_) {
    failure_ = why;
    abort_info_ = cause;
    return close_if_over();
  }
  const AbortInfo by_us{.reason = wire::AbortReason::kRankAborted, .rank_a = rank()};
  engine_->abort(why, cause.value_or(by_us), now);
}

/// Peers see that this rank no longer takes part.
void HostSums::close_if_over() {
  if (over()) group_->close(config_.self);
}

bool HostSums::on_time(Time now) {
  const auto soon = [&] {
    return now + Duration{static_cast<Duration::rep>(random_.below(500'000))};
  };
  if (over()) return false;
  if (!engine_) {
    if (formed_due_ == kNever && group_->have_all_come()) formed_due_ = soon();
    if (now >= formed_due_) {
      start();
    } else if (now >= config_.deadline) {
      failure_ = Error(ErrorCode::kFormationFailed,
                       config_.alias.name() + ": a rank did not join on this host");
      close_if_over();
    }
    return engine_ != nullptr;
  }
  for (LocalRank peer = 0; peer < lost_due_.size(); ++peer) {
    if (peer == config_.self || !group_->is_closed(peer) || lost_due_[peer] == Time{}) continue;
    if (lost_due_[peer] == kNever) lost_due_[peer] = soon();
    if (now < lost_due_[peer]) continue;
    lost_due_[peer] = Time{};
    engine_->lost(peer, now);
  }
  const bool any = ops_->turn(now);
  collect();
  close_if_over();
  return any;
}

}  // namespace sluice::sim
