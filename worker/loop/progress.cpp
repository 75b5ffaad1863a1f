#include "worker/loop/progress.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "common/config/environment.hpp"
#include "common/config/log.hpp"
#include "common/memory/thread_without_signals.hpp"
#include "common/net/clock.hpp"
#include "common/net/eal.hpp"
#include "common/net/igmp.hpp"
#include "common/protocol/packet.hpp"
#include "worker/config/worker_settings.hpp"
#include "worker/memory/arena.hpp"

namespace sluice {

namespace {

/// How often the progress thread takes a turn while other threads drive the loop.
constexpr std::chrono::milliseconds kLookInPeriod{20};

/// How many turns without work a thread makes, yielding after each, before it sleeps. In that time
/// the answer to a small op can come. More of them would keep the core from the aggregator.
constexpr std::uint32_t kYields = 100;

/// How many it makes before it yields. The rank that it waits for may need this core. (8 bytes
/// among 4 ranks on 2 cores took 26 us with 16, and 18 us with 1; with a core for each rank there
/// is no difference.)
constexpr std::uint32_t kSpins = 1;

/// A rank that waits for more bytes of results than this moves much data. If ports signal frames,
/// it sleeps at once, as others need the core more than it needs to poll. The limit is lower if
/// many ranks share a machine.
std::size_t few_bytes(std::size_t ranks) {
  static const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return (ranks > 2 * cores ? std::size_t{32} : std::size_t{128}) << 10;
}

/// How many bursts of frames a turn takes before it looks at timers. What waits in the ports
/// meanwhile is not lost.
constexpr std::size_t kMostBursts = 32;

std::shared_ptr<spdlog::logger> make_logger(const ContextOptions& options) {
  return config::make_logger(
      {.name = "sluice",
       .level = config::parse_choice("log_level", config::kLogLevelChoices, options.log_level)});
}

/// The rank by the environment, which may have been set for another process.
std::optional<std::uint16_t> launched_rank() {
  try {
    if (const auto place = config::find_placement(config::process_environment)) return place->rank;
  } catch (const Error&) {  // an error in the environment is reported when a job is joined by it
  }
  return std::nullopt;
}

}  // namespace

Time Progress::now() {
  return net::now();
}

Progress::Progress(const ContextOptions& options)
    : options_((validate(options), options)),
      idle_(config::parse_choice("idle", config::kIdleChoices, options.idle)),
      logger_(make_logger(options)),
      timeline_(std::make_unique<Timeline>(logger_)),
      attachment_(std::make_unique<Attachment>(options, logger_)) {
  if (!options.timeline.empty()) {
    const auto rank = launched_rank();
    timeline_->start(options.timeline, rank,
                     rank ? timeline_->open(options.timeline, *rank) : nullptr, now());
  }
  if (options.host_level)
    memory::Arena::of_process().tell_refusal_to([logger = logger_](const std::string& why) {
      logger->info("tensors lie in ordinary memory: {}", why);
    });
  thread_ = thread_without_signals([this] { run(); });
}

Progress::~Progress() {
  if (inherited()) {  // the ports belong to the parent, and the thread does not exist here
    static_cast<void>(attachment_.release());
    static_cast<void>(timeline_.release());
    static_cast<void>(new std::thread(std::move(thread_)));
    return;
  }
  stop_ = true;
  thread_.join();
  Timeline::Stopped stopped = timeline_->stop(now());
  try {
    if (stopped.file) stopped.file->close(stopped.last);
  } catch (const Error& error) {
    logger_->error("{}", error.what());
  }
}

void Progress::start_timeline(const std::string& file) {
  std::optional<std::uint16_t> rank = launched_rank();
  with_lock([&](Attachment&, Time) {
    timeline_->check_start(file);
    if (!rank) rank = first_rank_;
  });
  auto opened = rank ? timeline_->open(file, *rank) : nullptr;
  with_lock([&](Attachment&, Time now) {
    timeline_->start(file, rank, std::move(opened), now);
    notify_begun();
  });
}

void Progress::stop_timeline() {
  bool is_started = false;
  Timeline::Stopped stopped;
  with_lock([&](Attachment&, Time now) {
    is_started = timeline_->is_started();
    stopped = timeline_->stop(now);
    notify_begun();
  });
  if (!is_started) throw Error(ErrorCode::kInvalidArgument, "there is no timeline to stop");
  if (stopped.file) stopped.file->close(stopped.last);  // without the lock, as disks may be slow
}

void Progress::joins_as(std::uint16_t rank, Time now) {
  timeline_->joins_as(rank, now);
  first_rank_ = first_rank_.value_or(rank);
  notify_begun();
}

void Progress::notify_begun() {
  for (LoopClient* client : clients_) client->membership().notify_begun(timeline_->is_on());
}

void Progress::refuse_if_inherited() const {
  if (inherited())
    throw Error(ErrorCode::kUnavailable,
                "this process was forked from the one that opened the Context, which alone can use "
                "it: open it after forking");
}

void Progress::add(LoopClient& client, const std::string& whose) {
  const std::uint32_t job = client.membership().job();
  for (LoopClient* other : clients_)
    if (other->membership().job() == job && !other->membership().over())
      throw Error(ErrorCode::kInvalidArgument,
                  whose + " is joined already by this context: one communicator per job id, " +
                      std::to_string(job));
  clients_.push_back(&client);
  client.membership().notify_begun(timeline_->is_on());
}

/// Logs at level debug what the client has counted.
void Progress::remove(LoopClient& client) {
  if (logger_->should_log(spdlog::level::debug)) {
    const worker::Counters& counters = client.membership().counters();
    std::string text;
    const auto append = [&](std::string_view name, std::uint64_t value) {
      if (value != 0) text += " " + std::string(name) + " " + std::to_string(value);
    };
    counters.for_each(append);
    for (std::size_t i = 1; i < kDropReasonCount; ++i)
      append(name(static_cast<DropReason>(i)), counters.drops[static_cast<DropReason>(i)]);
    append("unclaimed by any job", unclaimed_);
    logger_->debug("job {}:{}", client.membership().job(), text);
  }
  std::erase(clients_, &client);
}

ProcessFigures Progress::figures() {
  return with_lock([&](Attachment& attachment, Time) {
    ProcessFigures all;
    if (attachment.has_ports()) all.io = attachment.io().counters();
    for (const LoopClient* client : clients_)
      if (auto one = client->figures()) all.jobs.push_back(*std::move(one));
    return all;
  });
}

std::size_t Progress::reserve_buffers(const std::string& whose, std::size_t streams,
                                      std::size_t history, bool may_encrypt) {
  const std::size_t needed = streams * (history + 2 + (may_encrypt ? 1 : 0));
  const std::size_t all = attachment_->buffers();
  if (reserved_buffers_ + needed > all)
    throw Error(
        ErrorCode::kUnavailable,
        whose + " needs " + std::to_string(needed) + " packet buffers (" + std::to_string(streams) +
            " streams, history " + std::to_string(history) + "), but " +
            std::to_string(all - std::min(reserved_buffers_, all)) + " of " + std::to_string(all) +
            " are free: set memory_mib (SLUICE_MEMORY_MIB) to at least " +
            std::to_string(attachment_->memory_mib_for(reserved_buffers_ + needed)) + ", and " +
            std::to_string(attachment_->memory_mib_for(needed) - attachment_->memory_mib_for(0) +
                           1) +
            " more for each further one like it");
  reserved_buffers_ += needed;
  return needed;
}

void Progress::run() {
  std::optional<net::ThreadRegistration> registration;
  if (attachment_->has_ports()) registration.emplace();
  Idle idle = waiting_idle();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (waiters_.load(std::memory_order_relaxed) != 0) {
      sleep_while_others_drive();
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) turn();
      continue;
    }
    if (claims_.load(std::memory_order_relaxed) != 0) {
      std::this_thread::yield();
      continue;
    }
    std::size_t work = 0;
    {
      const std::lock_guard lock(mutex_);
      work = turn();
    }
    idle.set_yields(yields());
    rest(idle.sleep_after(work), 0, [this] { return is_driven(); });
  }
}

void Progress::sleep_while_others_drive() {
  const Time end = after(now(), kLookInPeriod);
  while (waiters_.load(std::memory_order_relaxed) != 0 && now() < end &&
         !stop_.load(std::memory_order_relaxed))
    std::this_thread::sleep_for(kEventWait);  // the last of them gives no signal when it stops
}

Idle Progress::waiting_idle() const {
  return Idle(idle_, kYields, kSpins);
}

std::uint32_t Progress::yields() const {
  return awaits_much_.load(std::memory_order_relaxed) ? 0 : kYields;
}

/// Asks ports to signal frames and other ranks to wake this process, if all can do so; otherwise
/// `events` is empty. If more threads drive the loop, another one may do our work, which no frame
/// signals. Returns false if there was work just now.
bool Progress::prepare_to_sleep(int drivers, net::RxEvents& events) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || waiters_.load(std::memory_order_relaxed) > drivers) return true;
  bool tells = attachment_->arm(events);
  for (LoopClient* client : clients_) tells = tells && client->membership().arm(events);
  if (!tells)
    events.clear();
  else if (turn() != 0)
    return false;
  if (attachment_->has_backlog()) events.clear();  // nothing signals that there is room again
  return true;
}

/// One turn of the loop: receives packets, does what is due, completes ops, and sends.
std::size_t Progress::turn() {
  Time now = net::now();
  const Duration pause = now - std::exchange(last_turn_, now);
  for (LoopClient* client : clients_) client->membership().excuse_pause(pause, now);
  std::size_t work = attachment_->has_ports() ? receive(now) : 0;
  bool awaits_much = false;
  bool awaits_device = false;
  for (LoopClient* client : clients_) {
    Membership& membership = client->membership();
    const std::size_t awaited = membership.awaited_bytes();
    awaits_much |= awaited > few_bytes(membership.ranks());
    if (membership.on_time(now)) ++work;
    awaits_device |= membership.awaits_arrivals();
    if (client->after_turn(now)) ++work;
  }
  awaits_device_.store(awaits_device, std::memory_order_relaxed);
  awaits_much_.store(awaits_much && attachment_->tells(), std::memory_order_relaxed);
  attachment_->flush();
  return work;
}

/// Receives from the ports; `now` is set to the time afterwards.
std::size_t Progress::receive(Time& now) {
  net::DatagramIo& io = attachment_->io();
  attachment_->watch(now, [&](std::uint16_t port_id, bool up) {
    for (LoopClient* client : clients_) client->membership().on_link(port_id, up, now);
  });
  const auto take = [&](const Endpoint& from, Buffer payload) {
    const auto job = peek_job(payload.bytes());
    for (LoopClient* client : clients_) {
      if (client->membership().job() != job || client->membership().over()) continue;
      return client->membership().receive(from, std::move(payload), now);
    }
    ++unclaimed_;
  };
  std::size_t received = io.receive(take);
  for (std::size_t last = received, bursts = 1; last >= limits::kBurst && bursts < kMostBursts &&
                                                claims_.load(std::memory_order_relaxed) == 0;
       ++bursts) {
    io.flush();
    now = net::now();  // used to measure round trips
    received += last = io.receive(take);
  }
  receive_groups(now);  // before ranks ask for a BEACON
  return received;
}

/// Receives the groups of all sessions. If they are more than kMaxGroups, the aggregators notice
/// that some are not received, and send by unicast.
void Progress::receive_groups(Time now) {
  std::array<std::uint32_t, net::kMaxGroups> groups{};
  auto end = groups.begin();
  for (LoopClient* client : clients_)
    client->membership().for_each_group([&](std::uint32_t group) {
      if (end != groups.end() && std::find(groups.begin(), end, group) == end) *end++ = group;
    });
  attachment_->set_groups({groups.begin(), end}, now);
}

}  // namespace sluice
