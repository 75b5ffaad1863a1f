#include "aggregator/daemon/lane.hpp"

#include <algorithm>
#include <future>
#include <utility>

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/base/limits.hpp"
#include "common/net/clock.hpp"
#include "common/net/eal.hpp"

namespace sluice::aggregator {

namespace {

// How long a port may take to send what is queued at the end: packets that inform ranks of it.
constexpr std::chrono::milliseconds kFinalSendTime{200};

// How long a thread that asks a lane waits for the answer.
constexpr std::chrono::milliseconds kAnswerTimeLimit{500};

}  // namespace

Lane::Lane(const LaneOptions& options, EngineConfig config, net::BufferPool& payloads,
           net::BufferPool& headers, std::shared_ptr<spdlog::logger> logger)
    : options_(options),
      logger_(std::move(logger)),
      long_turn_(config.keep_alive_interval()),
      // One packet may be answered with a result to all.
      io_(payloads, headers, limits::kMaxBacklog, kMaxRanks),
      engine_(std::move(config), [this](const JobEvent& event) { keep(event); }) {
  io_.inject_faults(options_.faults);
  for (const std::uint16_t port : options_.udp_ports) io_.listen(port);
  if (options_.hand_over != nullptr) io_.join(*options_.hand_over, options_.number);
  thread_ = std::thread([this] { run(); });
}

void Lane::run() {
  const net::ThreadRegistration registration;
  pthread_setname_np(pthread_self(), thread_name(options_.number).c_str());
  pin();
  prctl(PR_SET_TIMERSLACK, 1UL);  // sleeps are short: do not make them 50 us longer
  Idle idle(options_.idle);
  Time last = net::now();
  std::size_t received = 0;
  std::uint64_t turn = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    turns_.store(++turn, std::memory_order_relaxed);
    const Time now = net::now();
    if (received != 0) busy_ += now - last;
    if (now - last > long_turn_)
      pause_ended(now - last);
    else if (io_.held_back())
      waited_.transmit_full += now - last;
    else if (io_.left_backlog())
      waited_.transmit_backlog += now - last;
    last = now;
    if (commanded_.load(std::memory_order_acquire)) {
      run_commands(now);
      command_time_ += net::now() - now;
    }
    received = io_.receive([&](const Endpoint& from, Buffer payload) {
      engine_.receive(from, std::move(payload), now, io_);
    });
    engine_.on_time(now, io_);
    io_.flush();
    idle.work_done(received);
  }
  io_.drain(kFinalSendTime);
}

void Lane::end() {
  if (!thread_.joinable()) return;
  stop_ = true;
  thread_.join();
  run_commands(net::now());  // commands that were posted last
}

void Lane::close(bool closed) {
  post([this, closed](Time) { engine_.close(closed); });
}

void Lane::retire() {
  post([this](Time now) { engine_.retire(now, io_); });
}

bool Lane::retired() {
  ask(known_retired_, [this](Time) { return engine_.retired(); });
  return known_retired_;
}

void Lane::capture(std::shared_ptr<net::Capture> capture) {
  post([this, capture = std::move(capture)](Time) { io_.capture(capture); });
}

std::optional<bool> Lane::kick(std::uint32_t job) {
  std::optional<bool> found;
  ask(found, [this, job](Time now) { return std::optional(engine_.kick(job, now, io_)); });
  return found;
}

std::optional<bool> Lane::limit_streams(std::uint32_t job, std::uint16_t streams) {
  std::optional<bool> found;
  ask(found,
      [this, job, streams](Time) { return std::optional(engine_.limit_streams(job, streams)); });
  return found;
}

void Lane::adjust(const EngineConfig& to) {
  post([this, to](Time) { engine_.adjust(to); });
}

void Lane::attach(const net::PortView& port) {
  post([this, port](Time) { io_.add_port(port); });
}

void Lane::detach(std::uint16_t port_id, std::function<void()> released) {
  post([this, port_id, released = std::move(released)](Time now) {
    io_.remove_port(port_id);
    engine_.on_disconnect(port_id, now, io_);
    released();
  });
}

/// Sets `known` to the answer, between two turns or at the end. If the lane makes no turn in time,
/// `known` stays, so that the caller is not blocked.
template <class T, class F>
void Lane::ask(T& known, F question) {
  if (!thread_.joinable()) {
    known = question(net::now());
    return;
  }
  const auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  post([promise, question](Time now) { promise->set_value(question(now)); });
  if (future.wait_for(kAnswerTimeLimit) == std::future_status::ready) known = future.get();
}

LaneFigures Lane::snapshot() {
  ask(known_, [this](Time now) { return take_snapshot(now); });
  return known_;
}

std::size_t Lane::live_jobs() {
  ask(known_live_jobs_, [this](Time) { return engine_.live_jobs(); });
  return known_live_jobs_;
}

LaneFigures Lane::take_snapshot(Time now) {
  timespec cpu{};
  if (thread_.joinable()) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  return {.engine = engine_.counters(),
          .io = io_.counters(),
          .jobs = engine_.figures_of_jobs(now),
          .busy = busy_,
          .command_time = command_time_,
          .cpu_time = std::chrono::seconds(cpu.tv_sec) + std::chrono::nanoseconds(cpu.tv_nsec),
          .waited = waited_};
}

Lane::Events Lane::take_events() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

void Lane::post(Command command) {
  const std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  commanded_.store(true, std::memory_order_release);
}

void Lane::run_commands(Time now) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    commanded_.store(false, std::memory_order_relaxed);
  }
  for (const Command& command : commands) command(now);
}

void Lane::keep(const JobEvent& event) {
  const std::lock_guard lock(mutex_);
  events_.of_jobs.keep(event);
}

/// This process was stopped, or others had the core. That is no silence of ranks.
void Lane::pause_ended(Duration pause) {
  engine_.excuse_pause(pause);
  waited_.pause += pause;
  const std::lock_guard lock(mutex_);
  events_.longest_pause = std::max(events_.longest_pause, pause);
}

void Lane::pin() const {
  if (options_.cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(options_.cpu), &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
    logger_->warn("cannot run lane {} on core {}: not one of this process's", options_.number,
                  options_.cpu);
}

}  // namespace sluice::aggregator
