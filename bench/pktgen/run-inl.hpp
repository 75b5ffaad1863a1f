#pragma once

#include <algorithm>
#include <utility>

#include <sys/resource.h>

#include <sluice/error.hpp>

#include "bench/pktgen/cycles.hpp"
#include "bench/pktgen/run.hpp"
#include "common/net/clock.hpp"

namespace sluice::pktgen {

template <class Io>
Run<Io>::Run(const Options& options, const GeneratorOptions& generator, Io& io,
             const Endpoint& aggregator, FarEnd far_end, const Supervision& supervision,
             Lockstep& lockstep)
    : options_(options),
      lane_(generator.lane),
      io_(io),
      generator_(generator, aggregator),
      far_end_(std::move(far_end)),
      supervision_(supervision),
      lockstep_(lockstep) {}

/// If a job fails here, this ends it at the aggregator, too, so that the next run can form it at
/// once.
template <class Io>
LaneRun Run<Io>::execute() {
  try {
    return go_through();
  } catch (...) {
    generator_.give_up(io_);
    io_.flush();
    throw;
  }
}

template <class Io>
LaneRun Run<Io>::go_through() {
  join();
  await_others();
  while (const auto rate = lockstep_.next_rate()) await_others(measure(*rate / options_.lanes));
  end();
  await_others();
  return {generator_.session(), generator_.schedule().geometry(), read()};
}

template <class Io>
void Run<Io>::join() {
  constexpr auto kTimeLimit = std::chrono::seconds(40);  // the sessions give up before
  if (lane_ != 0) drive(kNoLimit, [this] { return lockstep_.decided().has_value(); });
  generator_.start(lockstep_.decided(), net::now(), io_);
  drive(kTimeLimit, [this] { return generator_.active(); });
  if (lane_ == 0) lockstep_.decide(generator_.session());
  if (supervision_.live) last_live_ = read();
}

/// Polls meanwhile: frames of other lanes may come here, and are handed over.
template <class Io>
void Run<Io>::await_others(std::optional<Window> trial) {
  const unsigned point = lockstep_.arrive(lane_, std::move(trial));
  drive(kNoLimit, [&] { return lockstep_.passed(point); });
}

/// Completes the ops that have begun, as fast as possible, then leaves.
template <class Io>
void Run<Io>::end() {
  constexpr auto kTimeLimit = std::chrono::seconds(30);
  pacer_.set_rate(0, net::now());
  generator_.finish();
  if (!drive(kTimeLimit, [this] { return generator_.finished(); })) {
    generator_.give_up(io_);
    io_.flush();
    return;
  }
  generator_.leave(net::now(), io_);
  drive(kTimeLimit, [this] { return generator_.left(); });
}

template <class Io>
Window Run<Io>::measure(double rate) {
  Window window;
  window.offered = rate;
  pacer_.set_rate(rate, net::now());
  pass(options_.warmup);
  generator_.latencies() = {};
  window.begin = read();
  pass(options_.duration);
  window.end = read();
  window.latencies = generator_.latencies();
  return window;
}

// ------------------------------------------------------------------------------------- the loop
template <class Io>
void Run<Io>::pass(Duration time) {
  drive(time, [this] { return supervision_.stopped(); });
}

/// Makes turns until `until` holds (returns true), or for `at_most` (returns false). While this
/// thread does not run, it neither measures nor waits: a pause between turns does not count.
template <class Io>
template <class Until>
bool Run<Io>::drive(Duration at_most, Until until) {
  Time last_turn = net::now();
  Time end = after(last_turn, at_most);
  while (!until()) {
    const Time now = net::now();
    if (now - last_turn > kPause) end = after(end, now - last_turn);
    last_turn = now;
    if (now >= end) return false;
    far_end_.turn(now);
    idle_.work_done(turn());
    if (generator_.failure()) throw Error(*generator_.failure());
    if (lockstep_.failed()) throw Error(ErrorCode::kAborted, "another lane has failed");
    if (last_live_ && now - last_live_->at >= std::chrono::seconds(1)) tell_live();
  }
  return true;
}

template <class Io>
std::size_t Run<Io>::turn() {
  const std::uint64_t begin = cycles();
  const Time now = net::now();
  std::size_t work = io_.receive([&](const Endpoint& from, Buffer payload) {
    generator_.receive(from, std::move(payload), now, io_);
  });
  work += send_ready(now);
  generator_.on_time(now, io_);
  io_.flush();
  if (work != 0) busy_cycles_ += cycles() - begin;
  return work;
}

template <class Io>
std::size_t Run<Io>::send_ready(Time now) {
  const std::size_t allowed = std::min(pacer_.allowance(now), kSendMost);
  std::size_t sent = 0;
  while (sent < allowed) {
    const std::size_t batch = std::min(kSendBatch, allowed - sent);
    const std::size_t count = generator_.send_ready(batch, net::now(), io_);
    sent += count;
    if (count < batch) break;
  }
  pacer_.spend(sent);
  return sent;
}

template <class Io>
Reading Run<Io>::read() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto duration = [](const timeval& time) -> Duration {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return {.at = net::now(),
          .clock = cycles(),
          .busy_cycles = busy_cycles_,
          .cpu_time = duration(usage.ru_utime) + duration(usage.ru_stime),
          .io = io_.counters(),
          .tally = generator_.tally(),
          .lane = far_end_.reading()};
}

template <class Io>
void Run<Io>::tell_live() {
  Window window;
  window.begin = std::move(*last_live_);
  window.end = *last_live_ = read();
  window.latencies = generator_.latencies();
  supervision_.live(lane_, window);
}

}  // namespace sluice::pktgen
