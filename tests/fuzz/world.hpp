// An aggregator, its workers and the packets under way between them, in virtual time. What is
// delivered, when and how often is the fuzzer's choice.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "aggregator/engine/engine.hpp"
#include "tests/fuzz/caller.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/sim/random.hpp"

namespace sluice::fuzz {

/// Like those of random_id(), but the same for every run.
inline std::function<std::uint64_t()> ids_from(std::uint64_t seed) {
  return [random = sim::Random(seed)]() mutable { return random.next() | 1; };
}

inline constexpr Endpoint kAggregator{.port_id = 1, .ipv4 = 1, .udp_port = 4747};

/// A step in time: from less than a round trip to more than a time-out.
inline Duration pick_step(Input& input) {
  using std::chrono::microseconds;
  static constexpr std::array<int, 8> kMicroseconds{50,     1'000,   5'000,   20'000,
                                                    60'000, 110'000, 400'000, 1'200'000};
  return microseconds(input.pick(kMicroseconds));
}

/// Whatever is due is done; an engine that still wants to be called has no buffer, or spins.
template <class Engine>
void run_due(Engine& engine, Time now, parts::Sink& sink) {
  constexpr int kCallsMost = 8;
  for (int calls = 0; calls < kCallsMost; ++calls) {
    engine.on_time(now, sink);
    if (engine.next_deadline() > now) return;
  }
  require(sink.pool->dry, "a deadline lies ahead once all that is due is done");
}

struct Flight {
  Endpoint from;
  Endpoint to;
  sim::Bytes datagram;
};

class World {
 public:
  /// The ids of `config` are made here.
  World(const aggregator::EngineConfig& config, std::uint64_t seed)
      : config_(config), ids_(ids_from(seed)) {
    restart();
  }

  /// A new process takes the aggregator's place, and knows nothing.
  void restart() {
    config_.incarnation = ids_();
    config_.challenge_key.fill(static_cast<std::uint8_t>(ids_()));
    config_.unique = [this] { return ids_(); };
    engine = std::make_unique<aggregator::Engine>(config_, [](const aggregator::JobEvent& event) {
      std::optional<Rank> named;
      if (event.kind == aggregator::JobEvent::Kind::kStraggler) named = event.straggler.rank;
      if (const auto& why = event.reason; event.reported_by)  // a member says so
        named = std::max(why->rank_a, why->rank_b);
      require(!named || named->value < event.session.ranks,
              "an operator is told of ranks that the job has");
    });
  }

  void add(std::unique_ptr<Caller> caller) {
    caller->engine.start(now, caller->sink);
    callers.push_back(std::move(caller));
    pump();
  }

  /// What an engine sent is under way now.
  void pump() {
    take(sink, kAggregator);
    for (auto& caller : callers) take(caller->sink, caller->self());
  }

  void deliver(std::size_t which) {
    const Flight flight = std::move(flights[which]);
    flights.erase(flights.begin() + static_cast<std::ptrdiff_t>(which));
    arrive(flight);
  }
  void arrive(const Flight& flight) {
    if (flight.to == kAggregator) {
      engine->receive(flight.from, parts::received(sink, *flight.datagram), now, sink);
      require(sink.pool->live <= config_.buffers_max, "jobs keep no more buffers than they may");
    }
    for (auto& caller : callers)
      if (caller->self() == flight.to)
        caller->engine.receive(kAggregator, parts::received(caller->sink, *flight.datagram), now,
                               caller->sink);
    pump();
  }
  /// In order, with what this brings forth.
  void deliver_all() {
    for (int turns = 0; turns < kTurnsMost && !flights.empty(); ++turns) {
      const auto batch = std::exchange(flights, {});
      for (const Flight& flight : batch) arrive(flight);
    }
  }

  void pass(Duration time) {
    now += time;
    run_due(*engine, now, sink);
    for (auto& caller : callers) run_due(caller->engine, now, caller->sink);
    pump();
  }

  Time now = Time{std::chrono::hours(1)};
  parts::Sink sink;  ///< the aggregator's
  std::unique_ptr<aggregator::Engine> engine;
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<Flight> flights;
  std::function<void(const Flight&)> on_send;  ///< sees everything, if set

 private:
  static constexpr int kTurnsMost = 64;
  static constexpr std::size_t kFlightsMost = 256;  ///< what is sent beyond is lost

  void take(parts::Sink& from, const Endpoint& self) {
    for (parts::Sent& sent : from.take()) {
      const Flight flight{self, sent.to, sent.datagram};
      if (on_send) on_send(flight);
      if (flights.size() < kFlightsMost) flights.push_back(flight);
    }
  }

  aggregator::EngineConfig config_;
  std::function<std::uint64_t()> ids_;
};

}  // namespace sluice::fuzz
