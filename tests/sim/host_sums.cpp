#include "tests/sim/host_sums.hpp"

#include <algorithm>
#include <utility>

#include "common/protocol/geometry.hpp"
#include "tests/sim/bug.hpp"

namespace sluice::sim {

using worker::host::Engine;
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
  for (LocalRank mate = 0; mate < seats_.size(); ++mate)
    if (mate != rank && seats_[mate].wake) seats_[mate].wake();
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

OpNumber HostSums::submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
                          Time now) {
  return submit(request, worker::host::parts_of(request, counts, session_.ranks), now);
}

OpNumber HostSums::submit(const worker::OpRequest& request, std::vector<Part> parts, Time now) {
  require(!request.keyed && !request.device, "pairs, or a device, on a simulated host");
  const OpNumber op = next_op_++;
  if (!engine_) {
    completions_.push_back({.op = op, .statistics = {}, .error = failure_->of_op(op)});
    return op;
  }
  const std::size_t size = element_bytes(request.type);
  const worker::ElementRange whole{0, request.element_count};
  const worker::ElementRange held = request.held.value_or(whole);
  std::uint64_t wanted = 0;
  for (const auto& range : request.wanted.value_or(std::vector{whole}))
    wanted += range.end - range.begin;
  map(op, {const_cast<std::byte*>(request.input), (held.end - held.begin) * size});
  map(op, {request.output, wanted * size});
  require(engine_->submit(request, std::move(parts)) == op, "an op has another number");
  on_time(now);
  return op;
}

OpNumber HostSums::submit(worker::host::MoveSequence&, Time) {
  throw Bug("pairs on a simulated host");
}

/// Until the op's end.
void HostSums::map(OpNumber op, std::span<std::byte> memory) {
  if (memory.empty()) return;
  group_->map(config_.self, memory);
  mapped_.emplace(op, memory);
}

std::optional<worker::host::Place> HostSums::place_of(std::span<const std::byte> tensor) {
  if (random_.chance(0.4)) return std::nullopt;
  for (const auto& [op, memory] : mapped_) {
    if (memory.data() != tensor.data() || tensor.size() > memory.size()) continue;
    regions_.push_back(group_->share(config_.self, memory));
    return worker::host::Place{regions_.back(), 0};
  }
  throw Bug("a tensor is shared that is of no open op");
}

void HostSums::collect() {
  for (worker::Completion& completion : engine_->take_completions()) {
    const auto [begin, end] = mapped_.equal_range(completion.op);
    for (auto each = begin; each != end; ++each) group_->unmap(config_.self, each->second);
    mapped_.erase(begin, end);
    completions_.push_back(std::move(completion));
  }
  if (engine_->pending_ops() != 0) return;
  for (const std::uint64_t region : std::exchange(regions_, {}))
    group_->share_no_more(config_.self, region);
}

void HostSums::leave(Time now, Departure departure) {
  if (engine_) {
    engine_->leave(now, departure);
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

/// Mates learn that we take part no more.
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
  for (LocalRank mate = 0; mate < lost_due_.size(); ++mate) {
    if (mate == config_.self || !group_->is_closed(mate) || lost_due_[mate] == Time{}) continue;
    if (lost_due_[mate] == kNever) lost_due_[mate] = soon();
    if (now < lost_due_[mate]) continue;
    lost_due_[mate] = Time{};
    engine_->lost(mate, now);
  }
  const bool any = engine_->turn(now);
  collect();
  close_if_over();
  return any;
}

}  // namespace sluice::sim
