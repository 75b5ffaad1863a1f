#include "aggregator/lane.hpp"

#include <future>

#include <pthread.h>
#include <sched.h>

#include "common/config/log.hpp"
#include "common/net/clock.hpp"
#include "common/net/eal.hpp"

namespace sluice::aggregator {

Lane::Lane(const LaneOptions& options, EngineConfig config, net::BufferPool& payloads,
           net::BufferPool& headers, std::shared_ptr<spdlog::logger> logger)
    : options_(options),
      logger_(std::move(logger)),
      refusals_told_(options.log_rate_limit),
      io_(payloads, headers),
      engine_(std::move(config), [this](const JobEvent& event) { tell(event); }) {
  io_.listen(options_.udp_port);
  thread_ = std::thread([this] { run(); });
}

Lane::~Lane() {
  stop_ = true;
  thread_.join();
}

void Lane::run() {
  const net::ThreadRegistration registration;
  pin();
  Idle idle(options_.idle);
  while (!stop_.load(std::memory_order_relaxed)) {
    const Time now = net::now();
    if (commanded_.load(std::memory_order_acquire)) obey(now);
    const std::size_t received = io_.receive([&](const Endpoint& from, net::Buffer payload) {
      engine_.receive(from, std::move(payload), now, io_);
    });
    engine_.on_time(now, io_);
    io_.flush();
    idle.work_done(received);
  }
  engine_.shut_down(net::now(), io_);
  io_.flush();
  obey(net::now());
}

void Lane::attach(const net::PortView& port) {
  post([this, port](Time) { io_.add_port(port); });
}

void Lane::detach(std::uint16_t port_id, std::function<void()> released) {
  post([this, port_id, released = std::move(released)](Time now) {
    io_.remove_port(port_id);
    engine_.on_hang_up(port_id, now, io_);
    released();
  });
}

Lane::Snapshot Lane::snapshot() {
  std::promise<Snapshot> promise;
  auto future = promise.get_future();
  post([&](Time) { promise.set_value({engine_.counters(), io_.counters(), engine_.live_jobs()}); });
  return future.get();
}

void Lane::post(Command command) {
  const std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  commanded_.store(true, std::memory_order_release);
}

void Lane::obey(Time now) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    commanded_.store(false, std::memory_order_relaxed);
  }
  for (const Command& command : commands) command(now);
}

/// What an operator wants to read of a job.
void Lane::tell(const JobEvent& event) {
  const Session& s = event.session;
  switch (event.kind) {
    case JobEvent::Kind::kFormed:
      logger_->info("job {}: formed, {} ranks, {} streams, blocks of {}, history {}, payload {} B",
                    s.job, s.ranks, s.streams, s.block_elements, s.history, s.payload_bytes);
      break;
    case JobEvent::Kind::kLeft:
      logger_->info("job {}: all {} ranks have left", s.job, s.ranks);
      break;
    case JobEvent::Kind::kAborted:
      logger_->warn("job {}: ended: {}", s.job, explain(*event.reason));
      break;
    case JobEvent::Kind::kRefused:
      config::log_limited(*logger_, refusals_told_, net::now(), spdlog::level::warn,
                          "job {}: a join was refused: {}", s.job, explain(*event.reason));
      break;
  }
}

void Lane::pin() const {
  if (options_.cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(options_.cpu), &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
    logger_->warn("cannot run the lane on core {}: not one of this process's", options_.cpu);
}

}  // namespace sluice::aggregator
