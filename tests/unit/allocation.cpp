// A job that has joined takes no memory on its data path: the engines run on buffers of a pool that
// was made before, over a network that loses, repeats and reorders, while every call of operator
// new is counted.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "aggregator/engine/engine.hpp"
#include "tests/sim/random.hpp"
#include "tests/unit/catch.hpp"
#include "worker/engine/engine.hpp"
#include "worker/engine/keyed_operation.hpp"

namespace {
std::size_t allocations = 0;  // of this process, so far

void* counted(void* memory) {
  ++allocations;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
std::size_t rounded_up(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}
}  // namespace

// Inlined, they would look to the compiler like a malloc() that is deleted.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return counted(std::malloc(size == 0 ? 1 : size));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto bytes = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(bytes, rounded_up(size, bytes)));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

using namespace sluice;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kJob = 42;
constexpr unsigned kRanks = 3;
constexpr std::uint64_t kElements = 20'000;
constexpr Endpoint kAggregator{.ipv4 = 1};

// ---------------------------------------------------------------------------------- the network
class Pool;

struct Slot {
  Pool* pool = nullptr;
  unsigned references = 0;
  std::array<std::byte, 1024> bytes;
};

/// Buffers of one size, all of them made at the start.
class Pool {
 public:
  explicit Pool(std::size_t count) : slots_(count) {
    for (Slot& slot : slots_) {
      slot.pool = this;
      free_.push_back(&slot);
    }
  }
  Slot* take() {
    if (free_.empty()) return nullptr;
    Slot* slot = free_.back();
    free_.pop_back();
    slot->references = 1;
    return slot;
  }
  void give_back(Slot* slot) { free_.push_back(slot); }

 private:
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
};

class Slots final : public BufferMemory {
 public:
  void add_reference(void* slot) const override { ++static_cast<Slot*>(slot)->references; }
  void drop_reference(void* slot) const override {
    auto* ours = static_cast<Slot*>(slot);
    if (--ours->references == 0) ours->pool->give_back(ours);
  }
  std::size_t references(const void* slot) const override {
    return static_cast<const Slot*>(slot)->references;
  }
};
constexpr Slots kSlots;

struct Flight {
  Endpoint from;
  Endpoint to;
  Buffer buffer;
};

/// Once it is told to, it loses, repeats and reorders, and its pool runs dry at times.
class Network {
 public:
  Network() { flights_.reserve(kFlightsMost); }

  Buffer allocate(std::size_t size) {
    if (hostile && random_.chance(0.01)) return {};
    Slot* slot = size <= sizeof(Slot::bytes) ? pool_.take() : nullptr;
    return slot == nullptr ? Buffer() : Buffer(kSlots, slot, {slot->bytes.data(), size});
  }
  void send(const Endpoint& from, const Endpoint& to, Buffer buffer) {
    if (hostile && random_.chance(0.03)) return;
    if (hostile && random_.chance(0.03)) put({from, to, buffer.share()});
    put({from, to, std::move(buffer)});
  }
  bool empty() const { return flights_.empty(); }
  Flight next() {
    if (hostile) std::swap(flights_.back(), flights_[random_.below(flights_.size())]);
    Flight flight = std::move(flights_.back());
    flights_.pop_back();
    flight.buffer = received(flight.buffer.bytes());
    return flight;
  }

  bool hostile = false;

 private:
  static constexpr std::size_t kFlightsMost = 1000;

  /// Another buffer than the sender's, since an encrypted packet is decrypted where it lies.
  Buffer received(std::span<const std::byte> bytes) {
    Slot* const slot = pool_.take();
    REQUIRE(slot != nullptr);
    std::copy(bytes.begin(), bytes.end(), slot->bytes.begin());
    return {kSlots, slot, {slot->bytes.data(), bytes.size()}};
  }

  void put(Flight flight) {
    if (flights_.size() < kFlightsMost) flights_.push_back(std::move(flight));
  }

  Pool pool_{2000};
  std::vector<Flight> flights_;
  sim::Random random_{7};
};

class Sink final : public KeepingSink {
 public:
  Sink(Network& network, const Endpoint& endpoint) : self(endpoint), network_(network) {}

  Buffer allocate(std::size_t size) override { return network_.allocate(size); }
  void send(const Endpoint& to, Buffer buffer) override {
    network_.send(self, to, std::move(buffer));
  }
  Buffer send_and_keep(const Endpoint& to, Buffer buffer) override {
    send(to, buffer.share());
    return buffer;
  }

  const Endpoint self;

 private:
  Network& network_;
};

// -------------------------------------------------------------------------------------- the job
struct Worker {
  Worker(Network& network, const worker::EngineConfig& config)
      : sink(network, {.ipv4 = 10u + config.rank.value}),
        engine(config, std::span(&kAggregator, 1)),
        tensor(kElements) {}
  Sink sink;
  worker::Engine engine;
  std::vector<float> tensor;
};

/// What was allocated, by the kind of call that did it.
struct Allocated {
  std::size_t on_data_path = 0;
  std::size_t most_by_submit = 0;
  std::size_t most_by_completion = 0;  ///< in the call that ended an op
};

class Bench {
 public:
  Bench(bool authenticated, bool encrypted) : authenticated_(authenticated), encrypted_(encrypted) {
    aggregator::EngineConfig config;
    config.streams = 4;
    config.history = 4;
    config.payload_bytes = 508;
    config.liveness_timeout = 500ms;
    config.incarnation = 77;
    config.integrity = authenticated_;
    config.secret = [this](std::uint32_t) { return secret(); };
    config.unique = [this] { return ++ids_; };
    aggregator_ = std::make_unique<aggregator::Engine>(config);
    for (std::uint16_t r = 0; r < kRanks; ++r) workers_.push_back(make_worker(r));
    for (auto& worker : workers_) worker->engine.start(now_, worker->sink);
    run_until([&] { return all_active(); });
    network_.hostile = true;
  }

  /// One op of all ranks, to its end.
  void op(double density) {
    sim::Random random(++ids_);
    for (auto& worker : workers_) {
      for (std::uint64_t e = 0; e < kElements; e += 4)
        std::fill_n(&worker->tensor[e], 4, random.chance(density) ? 1.0f : 0.0f);
      submit(*worker);
    }
    run_until([&] { return none_pending(); });
    for (auto& worker : workers_) {
      const auto completions = worker->engine.take_completions();
      REQUIRE(completions.size() == 1);
      REQUIRE(!completions[0].error);
      REQUIRE(worker->tensor == workers_[0]->tensor);
    }
  }

  void forget() { allocated_ = {}; }
  const Allocated& allocated() const { return allocated_; }
  const aggregator::Counters& aggregator_counters() const { return aggregator_->counters(); }
  const worker::Counters& worker_counters(unsigned rank) const {
    return workers_[rank]->engine.counters();
  }
  Time now() const { return now_; }

 private:
  std::shared_ptr<const Secret> secret() const {
    return authenticated_ ? std::make_shared<const Secret>("known to the ranks only") : nullptr;
  }
  std::unique_ptr<Worker> make_worker(std::uint16_t rank) {
    worker::EngineConfig config;
    config.job = kJob;
    config.rank = Rank{rank};
    config.ranks = kRanks;
    config.block_elements = 4;
    config.payload_bytes = 508;
    config.integrity = authenticated_;
    config.secret = secret();
    config.authenticate_packets = authenticated_;
    config.encrypt_packets = encrypted_;
    config.rto = {.min = 1ms, .max = 20ms, .initial = 5ms};
    config.unique = [this] { return ++ids_; };
    return std::make_unique<Worker>(network_, config);
  }

  bool all_active() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
      return worker->engine.state() == worker::Engine::State::kActive;
    });
  }
  bool none_pending() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker->engine.pending_ops() == 0; });
  }

  void submit(Worker& worker) {
    worker::OpRequest request;
    request.input = reinterpret_cast<const std::byte*>(worker.tensor.data());
    request.output = reinterpret_cast<std::byte*>(worker.tensor.data());
    request.element_count = kElements;
    const std::size_t before = allocations;
    worker.engine.submit(request, now_, worker.sink);
    allocated_.most_by_submit = std::max(allocated_.most_by_submit, allocations - before);
  }

  template <class Call>
  void on_data_path(Call&& call) {
    const std::size_t before = allocations;
    call();
    allocated_.on_data_path += allocations - before;
  }
  /// The call that ends an op also makes its completion, which is the control plane's.
  template <class Call>
  void of_worker(Worker& worker, Call&& call) {
    const std::size_t pending = worker.engine.pending_ops();
    const std::size_t before = allocations;
    call();
    const std::size_t made = allocations - before;
    if (worker.engine.pending_ops() == pending)
      allocated_.on_data_path += made;
    else
      allocated_.most_by_completion = std::max(allocated_.most_by_completion, made);
  }

  void deliver(Flight flight) {
    now_ += 1us;
    if (flight.to == kAggregator) {
      Sink sink{network_, kAggregator};
      on_data_path(
          [&] { aggregator_->receive(flight.from, std::move(flight.buffer), now_, sink); });
      return;
    }
    for (auto& worker : workers_)
      if (worker->sink.self == flight.to)
        of_worker(*worker, [&] {
          worker->engine.receive(flight.from, std::move(flight.buffer), now_, worker->sink);
        });
  }

  void pass() {
    Time next = aggregator_->next_deadline();
    for (const auto& worker : workers_) next = std::min(next, worker->engine.next_deadline());
    now_ = std::max(now_, next);
    Sink sink{network_, kAggregator};
    on_data_path([&] { aggregator_->on_time(now_, sink); });
    for (auto& worker : workers_)
      of_worker(*worker, [&] { worker->engine.on_time(now_, worker->sink); });
  }

  template <class Done>
  void run_until(Done&& done) {
    const Time limit = now_ + 60s;
    while (!done()) {
      REQUIRE(now_ < limit);
      if (network_.empty())
        pass();
      else
        deliver(network_.next());
    }
  }

  const bool authenticated_;
  const bool encrypted_;
  Network network_;
  std::unique_ptr<aggregator::Engine> aggregator_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Time now_ = Time{1h};
  std::uint64_t ids_ = 5000;
  Allocated allocated_;
};

}  // namespace

TEST_CASE("operator new is counted") {
  const std::size_t before = allocations;
  void* const memory = ::operator new(8);         // a new-expression might be left out
  const std::size_t made = allocations - before;  // Catch makes some of its own
  ::operator delete(memory);
  CHECK(made == 1);
}

TEST_CASE("results without sums of pairs take no memory, however many come") {
  const Session session{.ranks = 2, .streams = 1, .payload_bytes = 508, .history = 2};
  const auto geometry = KeyedGeometry::make(1000, 1, ElementType::kFloat32, session, 0);
  worker::KeyedSums sums;
  worker::KeyedOperation op({.key_bound = 1000, .result_bytes = 64, .sums = &sums},
                            ElementType::kFloat32, geometry.value(),
                            std::make_shared<worker::ResultMemory>());
  const std::size_t before = allocations;
  for (int i = 0; i < 1000; ++i) op.store(StreamId{0}, {}, 0, kNoKey);
  const std::size_t made = allocations - before;
  CHECK(made == 0);
}

TEST_CASE("a job that has joined allocates nothing on its data path, also when packets are lost") {
  const bool authenticated = GENERATE(false, true);
  const bool encrypted = authenticated && GENERATE(false, true);
  CAPTURE(authenticated, encrypted);
  Bench bench(authenticated, encrypted);
  bench.op(1.0);
  bench.forget();
  const auto rounds_before = bench.aggregator_counters().rounds_finished;
  const Time began = bench.now();
  for (int i = 0; i < 20; ++i)
    for (const double density : {1.0, 0.5, 0.02}) bench.op(density);

  CHECK(bench.allocated().on_data_path == 0);
  // Per op: its place among the open ones, and its completion.
  CHECK(bench.allocated().most_by_submit <= 2);
  CHECK(bench.allocated().most_by_completion <= 1);

  const auto& aggregator = bench.aggregator_counters();
  CHECK(aggregator.rounds_finished - rounds_before > 10'000);
  CHECK(aggregator.rounds_stalled > 0);
  CHECK(aggregator.contributions_held > 0);
  CHECK(aggregator.results_repeated > 0);
  CHECK(aggregator.statuses_sent > 0);
  CHECK(bench.now() - began > 500ms);  // many KEEPALIVEs of each rank
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    CHECK(bench.worker_counters(rank).data_resent > 0);
    CHECK(bench.worker_counters(rank).probes_sent > 0);
    CHECK(bench.worker_counters(rank).results_early > 0);
  }
}
