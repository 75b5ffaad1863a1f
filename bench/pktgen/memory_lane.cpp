#include "bench/pktgen/memory_lane.hpp"

#include <string>
#include <utility>

#include <pthread.h>
#include <sched.h>

#include <sluice/error.hpp>

#include "common/net/clock.hpp"
#include "common/net/eal.hpp"

namespace sluice::pktgen {

MemoryLane::MemoryLane(std::uint16_t lane, aggregator::EngineConfig config,
                       const net::MemoryLink& link, net::BufferPool& payloads,
                       net::BufferPool& headers, const net::FaultPlan& faults)
    : long_turn_(config.keep_alive_interval()), io_(payloads, headers), engine_(std::move(config)) {
  io_.inject_faults(faults);
  io_.listen(static_cast<std::uint16_t>(kUdpPort + lane));
  io_.add_port(link.port());
}

MemoryLane::~MemoryLane() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void MemoryLane::turn(Time now) {
  excuse_pause(now);
  clock_.begin_turn();
  io_.observe(clock_.sampling() ? &clock_ : nullptr);
  const std::uint64_t sent_before = io_.counters().tx_datagrams;
  const std::size_t received = io_.receive([&](const Endpoint& from, Buffer payload) {
    engine_.receive(from, std::move(payload), now, io_);
  });
  io_.enter(Stage::kOther);
  engine_.on_time(now, io_);
  io_.enter(Stage::kTransmit);
  io_.flush();
  const std::uint64_t sent = io_.counters().tx_datagrams - sent_before;
  clock_.end_turn(received + sent);
}

/// A pause of the machine or of this process is no silence of ranks.
void MemoryLane::excuse_pause(Time now) {
  if (last_turn_ && now - *last_turn_ > long_turn_) engine_.excuse_pause(now - *last_turn_);
  last_turn_ = now;
}

void MemoryLane::start_thread(int cpu) {
  thread_ = std::thread([this] { run(); });
  pin(thread_.native_handle(), cpu);
}

void MemoryLane::run() {
  const net::ThreadRegistration registration;
  while (!stop_.load(std::memory_order_relaxed)) {
    turn(net::now());
    if (asked_.load(std::memory_order_relaxed) != nullptr)
      asked_.exchange(nullptr)->set_value(read());
  }
}

LaneReading MemoryLane::reading() {
  if (!thread_.joinable()) return read();
  std::promise<LaneReading> promise;
  asked_ = &promise;
  return promise.get_future().get();
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (pthread_setaffinity_np(thread, sizeof set, &set) != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot run on core " + std::to_string(cpu) + ": not one of this process's");
}

}  // namespace sluice::pktgen
