#include "tests/sim/app.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/source_ports.hpp"
#include "tests/sim/keyed_call.hpp"
#include "tests/sim/trace.hpp"
#include "worker/engine/engine.hpp"
#include "worker/engine/op_request.hpp"

namespace sluice::sim {
namespace {

using std::chrono::milliseconds;

constexpr std::byte kScribble{0x66};

// Compares the memory with itself, one byte further on: many times as fast as byte by byte.
bool is_scribble(const std::vector<std::byte>& memory) {
  return memory.empty() || (memory[0] == kScribble &&
                            std::memcmp(&memory[0], &memory[0] + 1, memory.size() - 1) == 0);
}
constexpr unsigned kFailuresMax = 12;

std::uint64_t count_true(const std::vector<bool>& flags) {
  return static_cast<std::uint64_t>(std::count(flags.begin(), flags.end(), true));
}

}  // namespace

App::App(World& world, Job& job, const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators,
         unsigned rank, std::uint16_t port_id, Role role)
    : world_(world),
      job_(job),
      aggregators_(aggregators),
      rank_(rank),
      role_(role),
      host_(world, *this,
            Endpoint{.port_id = port_id,
                     .ipv4 = address_of_rank(job.plan.id, rank, role == Role::kIntruder),
                     .udp_port = kWorkerUdpPort,
                     .off_machine = !job.plan.is_local}),
      random_(derive(world.scenario.seed, 5000 + job.plan.id * 1000 + port_id +
                                              (job.plan.shared_port ? 100'000 * (rank + 1) : 0))),
      device_random_(derive(world.scenario.seed, 7000 + job.plan.id * 1000 + port_id + rank * 31)) {
}

App::~App() = default;

worker::EngineConfig App::config() {
  const JobPlan& plan = job_.plan;
  worker::EngineConfig config;
  config.job = plan.id;
  config.rank = Rank{static_cast<std::uint16_t>(rank_)};
  config.ranks = static_cast<std::uint16_t>(plan.ranks);
  config.streams = plan.streams;
  config.history = plan.history;
  config.block_elements = plan.block_elements;
  config.payload_bytes = plan.payload_bytes[rank_ % plan.ranks];
  config.join_timeout = kJoinTimeout;
  config.aggregator_timeout = kAggregatorTimeout;
  config.join_retry_max = kJoinRetryMax;
  config.rto = {.min = milliseconds(5), .max = milliseconds(50), .initial = milliseconds(10)};
  config.search = plan.search;
  config.unique = [this] { return random_.next() | 1; };
  config.integrity = world_.scenario.integrity;
  config.secret = secret_of(plan.id, world_.scenario);
  if (!plan.hosts.empty()) config.host = plan.hosts[rank_];
  if (!world_.scenario.standbys.empty()) {
    for (unsigned each = 0; each < world_.scenario.aggregators(); ++each)
      config.addresses.push_back(static_cast<unsigned>(places_of(each).size()));
    config.locate = [this](std::uint16_t aggregator, unsigned attempt) {
      const auto places = places_of(aggregator);
      return std::optional(places[attempt % places.size()]);
    };
  }
  if (plan.fault == Fault::kWrongWorldSize && is_victim()) ++config.ranks;
  if (plan.fault == Fault::kRankBeyondWorld && is_victim()) config.rank.value = config.ranks;
  if (plan.fault == Fault::kJoinMismatch && is_victim()) ++config.block_elements;
  return config;
}

/// The address of an aggregator, or its standby, at lane 0.
Endpoint App::place_of(const AggregatorProcess& aggregator) const {
  Endpoint place = aggregator.endpoint();
  place.local_udp_port = host_.self().udp_port;
  return place;
}

std::vector<Endpoint> App::places_of(unsigned aggregator) const {
  std::vector<Endpoint> places;
  for (const auto& each : aggregators_)
    if (each->shard() == aggregator) places.push_back(place_of(*each));
  return places;
}

// ----------------------------------------------------------------------------------- generations
void App::begin(std::size_t program) {
  if (dead_) return;
  program_ = program;
  next_op_ = 0;
  leaving_ = false;
  pause_until_ = world_.events.now();
  active_since_ = kNever;
  due_ = kNever;
  began_ = world_.events.now();
  RankFacts& facts = job_.ranks[rank_];
  if (facts.rejoined) facts.rejoined_at = began_;
  std::vector<Endpoint> endpoints;
  for (const auto& aggregator : aggregators_)
    if (!aggregator->is_standby() && aggregator->shard() < world_.scenario.aggregators())
      endpoints.push_back(place_of(*aggregator));
  worker::EngineConfig settings = config();
  host_.start();
  trace_note(world_.tracing, world_.events.now(), "job %u rank %u joins for program %zu",
             job_.plan.id, rank_, program);
  membership_ = std::make_unique<RankMembership>(
      world_, job_, host_, std::move(settings), std::move(endpoints), random_, [this] { step(); },
      [this] { host_.wake(host_.now() + random_pause(std::chrono::microseconds(100))); });
  unless_it_dies([this] { settle(); });
}

void App::kill() {
  if (dead_ || gone_) return;
  trace_note(world_.tracing, world_.events.now(), "job %u rank %u dies", job_.plan.id, rank_);
  dead_ = true;
  die_ = nullptr;
  if (membership_) {
    cover(totals_, "worker", (*membership_)->counters());
    membership_->die();
    if (membership_->is_of_hosts()) left_behind_ = std::move(membership_);
  }
  membership_.reset();
  left_open_ = std::move(open_);
  open_.clear();
  host_.stop();
}

void App::die_after(std::uint64_t steps, std::function<void()> die) {
  steps_to_death_ = steps;
  die_ = std::move(die);
}

/// Called before each action that peers can see. Once the job is over for some rank, nobody dies.
void App::step() {
  if (job_.over_for_some) die_ = nullptr;
  if (die_ && steps_to_death_-- == 0) throw Died{};
}

/// Calls turn(), in which the process may die.
template <class F>
void App::unless_it_dies(F&& turn) {
  try {
    turn();
  } catch (const Died&) {
    ++world_.coverage["hosts.a rank died in its turn"];
    std::exchange(die_, nullptr)();
  }
}

void App::failed(const Error& error) {
  trace_note(world_.tracing, world_.events.now(), "job %u rank %u: %s", job_.plan.id, rank_,
             error.what());
  require(open_.empty(), "an op is open after the engine's end");
  const bool done = next_op_ == ops_to_call();
  // Otherwise it is an op of another life.
  if (error.code() == ErrorCode::kOpTimedOut && due_ != kNever) {
    require(host_.now() >= due_, "an op timed out too soon");
    ++world_.coverage["ops.timed out"];
    const bool is_of_all_ranks = !job_.plan.hosts.empty() && job_.plan.host_count() > 1 &&
                                 !job_.plan.sums_by_hosts(spec(job_.plan.fault_op));
    if (is_of_all_ranks) ++world_.coverage["hosts.ops of all ranks timed out"];
  }
  job_.judge(*this, error, active_since_ == kNever ? began_ : active_since_);
  RankFacts& facts = job_.ranks[rank_];
  facts.failed = true;
  facts.error = error;
  facts.failed_at = world_.events.now();
  facts.rejoined = true;
  end_life();
  const JobPlan& plan = job_.plan;
  const bool last = program_ + 1 == plan.programs.size();
  if (done && last && leaving_) {
    completed_last_ = true;
    gone_ = true;
  } else if (plan.programs.size() > 1 && !job_.over_for_some && !job_.shard_gone() && !intruder()) {
    require(++failures_ < kFailuresMax, "the job never comes through");
    world_.events.in(random_pause(milliseconds(50)),
                     [this, &plan] { begin(plan.programs.size() - 1); });
  } else {
    excused_ = gone_ = true;
    job_.over_for_some = true;
  }
}

void App::left() {
  trace_note(world_.tracing, world_.events.now(), "job %u rank %u has left", job_.plan.id, rank_);
  require(open_.empty(), "an op is open after leaving");
  end_life();
  if (program_ + 1 < job_.plan.programs.size() && !intruder()) {
    const bool planned = job_.plan.fault == Fault::kRejoin;
    if (planned) {
      job_.ranks[rank_].rejoined = true;
      return begin(program_ + 1);
    }
  }
  gone_ = completed_last_ = true;
}

/// Checks that the engine has gone, that its buffers are back, and that nobody wrote to returned
/// tensors.
void App::end_life() {
  host_.stop();
  membership_->check_end();
  cover(totals_, "worker", (*membership_)->counters());
  const auto& c = (*membership_)->counters();
  // Which takes an op.
  const bool told_hosts = !job_.plan.hosts.empty() && !membership_->is_of_hosts();
  require(told_hosts ? next_op_ == 0 : c.ops_completed + c.ops_failed == next_op_,
          "ops are not counted once each");
  membership_.reset();
  require(host_.sink().pool().live == 0, "a worker's buffers outlive its engine");
  for (const auto& memory : own_again_)
    require(is_scribble(memory), "memory was written after it was handed back");
  own_again_.clear();
}

// ------------------------------------------------------------------------------------ what comes
void App::on_packet(const Arrival& arrival, Buffer buffer) {
  unless_it_dies([&] {
    const std::uint64_t rejoins = (*membership_)->counters().rejoins;
    membership_->receive(arrival.from, std::move(buffer));
    if ((*membership_)->counters().rejoins != rejoins) judge_refusal(*arrival.bytes);
    settle();
  });
}

/// Only the aggregator of a session may end it.
void App::judge_refusal(const std::vector<std::byte>& datagram) const {
  Packet packet;
  if (Packet::parse(datagram, packet) != DropReason::kNone) return;
  if (packet.kind() != wire::Kind::kRefused) return;
  const auto& refused = packet.as<wire::Refused>();
  for (const auto& aggregator : aggregators_)
    require(aggregator->incarnation() == refused.incarnation ||
                !aggregator->knows(packet.job(), refused.token),
            "another aggregator has ended a session");
}

void App::on_turn() {
  unless_it_dies([this] {
    membership_->on_time();
    require(membership_->over() || membership_->next_deadline() > host_.now(),
            "a worker's timer spins");
    require(membership_->over() || (*membership_)->failure() || due_ > host_.now(),
            "an op outlives its time-out");
    settle();
  });
}

/// As the library's progress loop does it.
void App::on_pause_over(Duration pause, const std::function<void()>& take_packets) {
  if (membership_) membership_->excuse_pause(pause);
  take_packets();
  if (membership_) on_turn();
}

void App::settle() {
  if (!membership_) return;
  check();
  for (auto& [number, op] : open_)
    if (op.device && device_random_.chance(0.2)) op.device->take_results();
  for (int turn = 0; membership_ && (turn == 0 || membership_->has_completions()); ++turn) {
    for (const auto& completion : membership_->take_completions()) completed(completion);
    using State = Membership::State;
    const State state = membership_->state();
    if (state == State::kFailed) return failed(*(*membership_)->failure());
    if (state == State::kLeft) return left();
    if (state != State::kActive) continue;
    active_since_ = std::min(active_since_, world_.events.now());
    work();
  }
  if (!membership_) return;
  if (world_.scenario.multicast) {
    std::set<Address> groups;
    membership_->for_each_group([&](std::uint32_t group) { groups.insert(group); });
    world_.network.set_groups(host_.self().ipv4, std::move(groups));
  }
  host_.wake(membership_->next_deadline());
  if (membership_->is_of_hosts()) host_.wake(std::max(due_, host_.now() + kTurn));
}

void App::check() {
  require(host_.sink().pool().live <= membership_->most_buffers(),
          "a worker holds too many buffers");
  const worker::Counters& counters = (*membership_)->counters();
  require(
      counters.drops.total() <= counters.packets_received + counters.drops[DropReason::kNoBuffer],
      "more drops than packets");
  if (!job_.plan.hosts.empty()) return;
  require(membership_->engine().pending_ops() == open_.size() || membership_->has_completions(),
          "pending ops are miscounted");
}

// ------------------------------------------------------------------------------------------- ops
const OpSpec& App::spec(std::size_t index) const {
  const JobPlan& plan = job_.plan;
  const Program& program = plan.programs[program_];
  if (plan.fault != Fault::kOpMismatch || !is_victim() || program_ != 0) return program[index];
  if (plan.swapped && (index == plan.fault_op || index == plan.fault_op + 1))
    return program[index == plan.fault_op ? index + 1 : index - 1];
  return index == plan.fault_op ? plan.other_op : program[index];
}

std::size_t App::ops_to_call() const {
  const JobPlan& plan = job_.plan;
  const bool early = plan.fault == Fault::kEarlyLeave && is_victim() && program_ == 0;
  return early ? plan.fault_op : plan.programs[program_].size();
}

void App::work() {
  const JobPlan& plan = job_.plan;
  const Time now = world_.events.now();
  if (now < pause_until_) return;
  while (next_op_ < ops_to_call() && open_.size() < plan.depth) {
    submit();
    if (plan.fault == Fault::kAbortingLeave && is_victim() && next_op_ == plan.fault_op + 1) {
      return leave();
    }
  }
  if (next_op_ < ops_to_call() || !open_.empty() || leaving_ || membership_->has_completions())
    return;
  leaving_ = true;
  if (plan.fault != Fault::kRejoin || program_ + 1 == plan.programs.size())
    job_.over_for_some = true;
  leave();
}

void App::leave() {
  RankFacts& facts = job_.ranks[rank_];
  facts.called_leave = true;
  facts.left_at = world_.events.now();
  const bool early = next_op_ < job_.plan.programs[program_].size();
  if (early && job_.plan.fault_op % 2 == 0) facts.departure = Departure::kByException;
  (*membership_)->leave(host_.now(), early ? facts.departure : Departure::kByChoice);
  membership_->turn_soon();
}

void App::submit() {
  OpenOp op;
  op.spec = spec(next_op_);
  op.index = next_op_;
  op.began = world_.events.now();
  if (is_keyed(op.spec)) return submit_pairs(std::move(op));
  op.block_elements =
      fitting_block_elements((*membership_)->session(), op.spec.block_elements, op.spec.type);
  op.tensor = make_tensor(op.spec, rank_, job_.plan.ranks, op.block_elements);
  op.input = op.tensor.data;
  op.wanted = wanted_by(op.spec, rank_, job_.plan.ranks);
  if (!op.tensor.in_place)
    op.output.assign(pick(op.tensor.data, op.wanted, op.spec.type).size(), std::byte{0x5a});
  worker::OpRequest request;
  request.collective = op.spec.collective;
  request.type = op.spec.type;
  request.reduction = op.spec.reduction;
  request.root = op.spec.root;
  request.block_elements = op.spec.block_elements;
  request.tag = op.spec.tag;
  request.encoding = op.spec.encoding;
  request.rounding_seed = op.spec.rounding_seed;
  if (request.rounding_seed != 0) ++world_.coverage["ops.rounded stochastically"];
  if (request.is_encoded()) ++world_.coverage["ops." + std::string(name(request.encoding))];
  const std::vector<std::uint64_t> counts =
      op.spec.counts.empty() ? std::vector{op.spec.element_count} : op.spec.counts;
  const worker::RankOf me{static_cast<std::uint16_t>(rank_),
                          static_cast<std::uint16_t>(job_.plan.ranks)};
  worker::lay_out(request, me, counts);
  const std::size_t size = element_bytes(op.spec.type);
  const std::uint64_t first = op.wanted.empty() ? 0 : op.wanted[0].begin;
  auto& open = open_[next_op_] = std::move(op);
  std::byte* const tensor = open.tensor.data.data();
  request.input = tensor + held_by(open.spec, rank_, job_.plan.ranks).begin * size;
  request.output = open.tensor.in_place ? tensor + first * size : open.output.data();
  request.nonzero_blocks = open.tensor.bitmap;
  const bool is_timed = world_.scenario.theme >= Theme::kFullLinks;  // a device may be slow
  if (!is_timed && Random(derive(open.spec.seed, 3000 + rank_)).chance(0.25))
    put_on_device(open, request);
  hand_over(request, counts);
}

/// As a caller whose tensor is on a device, which copies it in its own time.
void App::put_on_device(OpenOp& op, worker::OpRequest& request) {
  const DevicePlan plan = worker::device_plan(request, (*membership_)->session());
  const std::size_t size = element_bytes(op.spec.type);
  std::byte* const input = const_cast<std::byte*>(request.input);
  op.device = std::make_shared<DeviceTensor>(
      plan, static_cast<std::uint32_t>(1 + device_random_.below(1 + plan.blocks / 2)),
      op.tensor.travels, std::span(input, (plan.held_end - plan.held_begin) * size),
      std::span(request.output, (plan.wanted_end - plan.wanted_begin) * size));
  request.input = op.device->host_input().data();
  request.output = op.device->host_output();
  request.nonzero_blocks = {};
  request.device = {.plan = plan, .words = op.device->words()};
  ++world_.coverage["ops.on a device"];
  if (!plan.is_wanted_in_one) ++world_.coverage["ops.on a device, wanted in pieces"];
  copy_later(op.device);
}

void App::copy_later(const std::weak_ptr<DeviceTensor>& device) {
  host_.later(Duration{static_cast<Duration::rep>(device_random_.below(1'000'000))},
              [this, device] {
                const auto tensor = device.lock();
                if (tensor && tensor->copy_next()) copy_later(device);
              });
}

void App::submit_pairs(OpenOp op) {
  OpenOp& open = open_[next_op_] = std::move(op);
  open.chunk_bits = chunk_bits_of(open.spec, (*membership_)->session());
  open.pairs = make_pairs(open.spec, rank_);
  const worker::OpRequest request =
      request_of(open.spec, open.pairs, open.sums, std::size_t{1} << 30);
  worker::check(request, "sparse_all_reduce", (*membership_)->session());
  hand_over(request, {});
  ++world_.coverage["ops.keyed"];
  if (request.is_encoded()) ++world_.coverage["ops.keyed " + std::string(name(request.encoding))];
}

/// The victim's time-out is in the request, or is set after it was submitted.
void App::hand_over(worker::OpRequest request, const std::vector<std::uint64_t>& counts) {
  std::optional<worker::OpTimeout> set_later;
  if (may_time_out(next_op_)) {
    const auto limit = std::chrono::ceil<milliseconds>(job_.plan.fault_after + Duration{1});
    const auto timeout = worker::OpTimeout::of(host_.now(), limit);
    due_ = timeout.due;
    job_.ranks[rank_].due = world_.events.now() + limit;
    if (random_.chance(0.5))
      request.timeout = timeout;
    else
      set_later = timeout;
  }
  const OpNumber number = (*membership_)->submit(request, counts, host_.now());
  require(number == next_op_, "ops are not numbered in call order");
  if (set_later) (*membership_)->set_timeout(number, *set_later);
  membership_->turn_soon();
  ++next_op_;
}

bool App::may_time_out(std::size_t index) const {
  const JobPlan& plan = job_.plan;
  return plan.fault == Fault::kOpTimedOut && is_victim() && program_ == 0 && index == plan.fault_op;
}

void App::completed(const worker::Completion& completion) {
  const auto found = open_.find(completion.op);
  require(found != open_.end(), "an op ended that was not open");
  OpenOp op = std::move(found->second);
  open_.erase(found);
  if (completion.error) {
    trace_note(world_.tracing, world_.events.now(), "job %u rank %u op %zu: %s", job_.plan.id,
               rank_, op.index, completion.error->what());
    require(membership_->over(), "an op failed while the engine lives on");
    job_.judge(*this, *completion.error, std::max(op.began, active_since_));
  } else {
    require(!op.spec.poisoned, "an op that ranks disagree about ended well");
    if (op.device) {
      op.device->take_results();
      require(op.device->has_all_results(), "an op is done, and its result is not final");
    }
    check_result(op, completion.statistics);
    ++ops_ok_;
    if (may_time_out(op.index)) {
      due_ = kNever;
      ++world_.coverage["ops.done within their time-out"];
    }
  }
  hand_back(std::move(op));
  if (random_.chance(0.5)) {
    const Duration pause = random_pause(job_.plan.pause_max);
    pause_until_ = world_.events.now() + pause;
    host_.later(pause, [this] { unless_it_dies([this] { settle(); }); });
  }
}

void App::check_result(const OpenOp& op, const OpStatistics& statistics) {
  const std::string which = "job " + std::to_string(job_.plan.id) + " rank " +
                            std::to_string(rank_) + " op " + std::to_string(op.index);
  if (job_.plan.host_count() > 1 && membership_->is_of_hosts())
    ++world_.coverage[!job_.plan.sums_by_hosts(op.spec) ? "hosts.ops of all ranks"
                      : is_keyed(op.spec)               ? "hosts.ops of pairs"
                      : chunks_of(op.spec) == 1         ? "hosts.ops"
                                                        : "hosts.ops in chunks"];
  if (is_keyed(op.spec)) {
    const PairSums& wanted = job_.sums(program_, op.index, op.chunk_bits);
    const PairSums sums = in_order(op.sums);
    require(sums.keys == wanted.keys, which + ": wrong keys");
    require(same(sums.rows, wanted.rows, op.spec.type), which + ": wrong sums");
    require(sums.rejected == wanted.rejected, which + ": wrong counts of what was rejected");
    const Pairs before = make_pairs(op.spec, rank_);
    require(before.keys == op.pairs.keys && before.rows == op.pairs.rows,
            which + ": the input was written to");
    return;
  }
  const Outcome& outcome = job_.outcome(program_, op.index, op.block_elements);
  const auto& got = op.tensor.in_place ? pick(op.tensor.data, op.wanted, op.spec.type) : op.output;
  require(same(got, pick(outcome.data, op.wanted, op.spec.type), op.spec.type),
          which + ": wrong result");
  check_counts(op, outcome, statistics);
  std::vector<std::byte> expected = op.input;
  if (op.tensor.in_place) put(got, op.wanted, op.spec.type, expected);
  require(expected == op.tensor.data, which + ": the input was written to");
}

/// A rank that carries a share for its host counts what it has sent of that share.
void App::check_counts(const OpenOp& op, const Outcome& outcome,
                       const OpStatistics& statistics) const {
  const JobPlan& plan = job_.plan;
  const std::string which = "job " + std::to_string(plan.id) + " rank " + std::to_string(rank_) +
                            " op " + std::to_string(op.index);
  std::vector<bool> sent = op.tensor.travels;
  std::vector<bool> received = outcome.travels;
  auto needed = blocks_of(op.wanted, received.size(), op.block_elements);
  std::size_t blocks = sent.size();
  if (plan.host_count() == 1) return;  // the simulation of hosts checks this
  if (plan.sums_by_hosts(op.spec)) {
    const HostPlan hosts(plan.hosts);
    const std::vector<bool> share = hosts.share_of(rank_, blocks, chunks_of(op.spec));
    sent = outcome.of_host[hosts.host_of(rank_)];
    needed.assign(blocks, false);
    for (const unsigned peer : hosts.ranks_of(hosts.host_of(rank_))) {
      const auto of_peer =
          blocks_of(wanted_by(op.spec, peer, plan.ranks), blocks, op.block_elements);
      for (std::size_t b = 0; b < blocks; ++b) needed[b] = needed[b] || of_peer[b];
    }
    for (std::vector<bool>* const each : {&sent, &received, &needed})
      for (std::size_t b = 0; b < blocks; ++b) (*each)[b] = (*each)[b] && share[b];
    blocks = count_true(share);
  }
  for (std::size_t b = 0; b < needed.size(); ++b) needed[b] = needed[b] && received[b];
  require(statistics.blocks == blocks, which + ": wrong block count");
  require(statistics.blocks_sent == count_true(sent), which + ": wrong blocks sent");
  require(statistics.blocks_received >= count_true(needed), which + ": too few blocks received");
  require(statistics.blocks_received <= count_true(received), which + ": too many blocks received");
}

/// The chunks of an op that hosts sum.
std::size_t App::chunks_of(const OpSpec& op) const {
  const std::size_t of_rail =
      op.element_count / HostPlan(job_.plan.hosts).rails() * element_bytes(op.type);
  return std::clamp<std::size_t>(of_rail / job_.plan.min_chunk_of_rail, 1, 8);
}

/// The memory belongs to the caller again, which writes to it at once.
void App::hand_back(OpenOp op) {
  std::fill(op.tensor.data.begin(), op.tensor.data.end(), kScribble);
  std::fill(op.output.begin(), op.output.end(), kScribble);
  std::fill(op.tensor.bitmap.begin(), op.tensor.bitmap.end(), ~std::uint64_t{0});
  std::fill(op.pairs.keys.begin(), op.pairs.keys.end(), ~std::uint64_t{0});
  std::fill(op.pairs.rows.begin(), op.pairs.rows.end(), kScribble);
  if (op.device)
    for (auto& memory : op.device->hand_back()) {
      std::fill(memory.begin(), memory.end(), kScribble);
      own_again_.push_back(std::move(memory));
    }
  own_again_.push_back(std::move(op.pairs.rows));
  own_again_.push_back(std::move(op.tensor.data));
  own_again_.push_back(std::move(op.output));
}

Duration App::random_pause(Duration most) {
  return Duration{static_cast<Duration::rep>(random_.unit() * static_cast<double>(most.count()))};
}

// ------------------------------------------------------------------------------------------- end
std::string App::state() const {
  static constexpr const char* kNames[] = {"joining", "active", "leaving", "left", "failed"};
  return "job " + std::to_string(job_.plan.id) + " rank " + std::to_string(rank_) +
         (intruder() ? " (intruder)" : "") + ": " +
         (membership_ ? kNames[static_cast<int>(membership_->state())] : "without membership") +
         ", " + std::to_string(open_.size()) + " ops open, next " + std::to_string(next_op_);
}

void App::check_end() const {
  if (dead_ || intruder()) return;
  require(completed_last_ || excused_, state() + ": neither done nor excused");
}

void App::add_to(Coverage& coverage) const {
  for (const auto& [name, n] : totals_) coverage[name] += n;
  host_.add_to(coverage);
}

}  // namespace sluice::sim
