#include "worker/progress.hpp"

#include <csignal>

#include "common/config/log.hpp"
#include "common/net/clock.hpp"
#include "common/net/eal.hpp"
#include "common/protocol/packet.hpp"
#include "worker/environment.hpp"

namespace sluice {
namespace {

/// How often the progress thread looks in while others drive the loop.
constexpr std::chrono::microseconds kLookInPeriod{200};

std::shared_ptr<spdlog::logger> make_logger(const ContextOptions& options) {
  return config::make_logger(
      {.name = "sluice",
       .level = config::parse_choice("log_level", config::kLogLevelChoices, options.log_level)});
}

}  // namespace

Time Progress::now() {
  return net::now();
}

Progress::Progress(const ContextOptions& options)
    : idle_((validate(options), *parse_idle_strategy(options.idle))),
      logger_(make_logger(options)),
      attachment_(std::make_unique<Attachment>(options, logger_)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);  // the host process's signals are not for our thread
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Progress::~Progress() {
  stop_ = true;
  thread_.join();
}

void Progress::remove(Member& member) {
  std::erase(members_, &member);
}

void Progress::run() {
  const net::ThreadRegistration registration;
  Idle idle(idle_);
  while (!stop_.load(std::memory_order_relaxed)) {
    if (waiters_.load(std::memory_order_relaxed) != 0) {
      std::this_thread::sleep_for(kLookInPeriod);
      continue;
    }
    if (claims_.load(std::memory_order_relaxed) != 0) {
      std::this_thread::yield();
      continue;
    }
    std::size_t work = 0;
    {
      const std::lock_guard lock(turn_);
      work = turn();
    }
    idle.work_done(work);
  }
}

/// One turn of the loop: what came in, what is due, what is done, what goes out.
std::size_t Progress::turn() {
  net::DatagramIo& io = attachment_->io();
  const Time now = net::now();
  const std::size_t received = io.receive([&](const Endpoint& from, net::Buffer payload) {
    const auto job = peek_job(payload.bytes());
    for (Member* member : members_) {
      if (job && member->engine().job() != *job) continue;
      member->engine().receive(from, std::move(payload), now, io);
      return;
    }
  });
  std::size_t work = received;
  for (Member* member : members_) {
    member->engine().on_time(now, io);
    if (!member->engine().has_completions()) continue;
    member->on_completions();
    ++work;
  }
  io.flush();
  return work;
}

}  // namespace sluice
