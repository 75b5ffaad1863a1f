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
#include "worker/config/environment.hpp"
#include "worker/memory/arena.hpp"

namespace sluice {

namespace {

/// How often the progress thread looks in while others drive the loop.
constexpr std::chrono::milliseconds kLookInPeriod{20};

/// Turns without work before a thread sleeps: enough for a small op's answer to come meanwhile, so
/// few that waiting ranks do not take the core that the aggregator needs.
constexpr std::uint32_t kYields = 100;

/// And before it yields: it may keep from its core the very rank that it waits for. (8 bytes among
/// 4 ranks on 2 cores took 26 us with 16, and take 18; with a core each, as long.)
constexpr std::uint32_t kSpins = 1;

/// Who awaits results of more bytes than these moves much data. Where ports tell of frames it
/// sleeps at once: others need the core more than results need to be looked for. They do so earlier
/// where many ranks share a machine.
std::size_t few_bytes(std::size_t ranks) {
  static const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return (ranks > 2 * cores ? std::size_t{32} : std::size_t{128}) << 10;
}

/// Bursts of frames that a turn takes at most before it looks at timers: what waits there already
/// is not lost.
constexpr std::size_t kMostBursts = 32;

std::shared_ptr<spdlog::logger> make_logger(const ContextOptions& options) {
  return config::make_logger(
      {.name = "sluice",
       .level = config::parse_choice("log_level", config::kLogLevelChoices, options.log_level)});
}

/// As far as the environment tells: it may be set for others.
std::optional<std::uint16_t> launched_rank() {
  try {
    if (const auto place = config::find_placement(config::process_environment)) return place->rank;
  } catch (const Error&) {  // joining a job by the environment says what is wrong with it
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
  if (inherited()) {  // the ports are the parent's, and the thread is not here
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
  with_turn([&](Attachment&, Time) {
    timeline_->check_start(file);
    if (!rank) rank = first_rank_;
  });
  auto opened = rank ? timeline_->open(file, *rank) : nullptr;
  with_turn([&](Attachment&, Time now) {
    timeline_->start(file, rank, std::move(opened), now);
    tell_begun();
  });
}

void Progress::stop_timeline() {
  bool is_started = false;
  Timeline::Stopped stopped;
  with_turn([&](Attachment&, Time now) {
    is_started = timeline_->is_started();
    stopped = timeline_->stop(now);
    tell_begun();
  });
  if (!is_started) throw Error(ErrorCode::kInvalidArgument, "there is no timeline to stop");
  if (stopped.file) stopped.file->close(stopped.last);  // without the turn: disks may be slow
}

void Progress::joins_as(std::uint16_t rank, Time now) {
  timeline_->joins_as(rank, now);
  first_rank_ = first_rank_.value_or(rank);
  tell_begun();
}

void Progress::tell_begun() {
  for (Member* member : members_) member->membership().tell_begun(timeline_->is_on());
}

void Progress::refuse_if_inherited() const {
  if (inherited())
    throw Error(ErrorCode::kUnavailable,
                "this process was forked from the one that opened the Context, which alone can use "
                "it: open it after forking");
}

void Progress::add(Member& member, const std::string& whose) {
  const std::uint32_t job = member.membership().job();
  for (Member* other : members_)
    if (other->membership().job() == job && !other->membership().over())
      throw Error(ErrorCode::kInvalidArgument,
                  whose + " is joined already by this context: one communicator per job id, " +
                      std::to_string(job));
  members_.push_back(&member);
  member.membership().tell_begun(timeline_->is_on());
}

/// Says at debug level what it counted.
void Progress::remove(Member& member) {
  if (logger_->should_log(spdlog::level::debug)) {
    const worker::Counters& counters = member.membership().counters();
    std::string text;
    const auto append = [&](std::string_view name, std::uint64_t value) {
      if (value != 0) text += " " + std::string(name) + " " + std::to_string(value);
    };
    counters.for_each(append);
    for (std::size_t i = 1; i < kDropReasonCount; ++i)
      append(name(static_cast<DropReason>(i)), counters.drops[static_cast<DropReason>(i)]);
    append("unclaimed by any job", unclaimed_);
    logger_->debug("job {}:{}", member.membership().job(), text);
  }
  std::erase(members_, &member);
}

ProcessFigures Progress::figures() {
  return with_turn([&](Attachment& attachment, Time) {
    ProcessFigures all;
    if (attachment.has_ports()) all.io = attachment.io().counters();
    for (const Member* member : members_)
      if (auto one = member->figures()) all.jobs.push_back(*std::move(one));
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
      if (const std::unique_lock lock(turn_, std::try_to_lock); lock) turn();
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
    idle.set_yields(yields());
    rest(idle.sleep_after(work), 0, [this] { return is_driven(); });
  }
}

void Progress::sleep_while_others_drive() {
  const Time end = after(now(), kLookInPeriod);
  while (waiters_.load(std::memory_order_relaxed) != 0 && now() < end &&
         !stop_.load(std::memory_order_relaxed))
    std::this_thread::sleep_for(kEventWait);  // the last of them tells nobody that it goes
}

Idle Progress::waiting_idle() const {
  return Idle(idle_, kYields, kSpins);
}

std::uint32_t Progress::yields() const {
  return awaits_much_.load(std::memory_order_relaxed) ? 0 : kYields;
}

/// Has ports tell of frames, and mates of news, if all can: `events` is empty otherwise. Where more
/// threads drive the loop, another may do our work, which no frame tells; nor may it miss what it
/// was told. False: there was work just now.
bool Progress::prepare_to_sleep(int drivers, net::RxEvents& events) {
  const std::unique_lock lock(turn_, std::try_to_lock);
  if (!lock || waiters_.load(std::memory_order_relaxed) > drivers) return true;
  bool tells = attachment_->arm(events);
  for (Member* member : members_) tells = tells && member->membership().arm(events);
  if (!tells)
    events.clear();
  else if (turn() != 0)
    return false;
  if (attachment_->has_backlog()) events.clear();  // of room nobody tells
  return true;
}

/// One turn of the loop: what came in, what is due, what is done, what goes out.
std::size_t Progress::turn() {
  Time now = net::now();
  const Duration pause = now - std::exchange(last_turn_, now);
  for (Member* member : members_) member->membership().excuse_pause(pause, now);
  std::size_t work = attachment_->has_ports() ? receive(now) : 0;
  bool awaits_much = false;
  bool awaits_device = false;
  for (Member* member : members_) {
    Membership& membership = member->membership();
    const std::size_t awaited = membership.awaited_bytes();
    awaits_much |= awaited > few_bytes(membership.ranks());
    if (membership.on_time(now)) ++work;
    awaits_device |= membership.awaits_arrivals();
    if (member->after_turn(now)) ++work;
  }
  awaits_device_.store(awaits_device, std::memory_order_relaxed);
  awaits_much_.store(awaits_much && attachment_->tells(), std::memory_order_relaxed);
  attachment_->flush();
  return work;
}

/// What came to the ports: `now` is the time afterwards.
std::size_t Progress::receive(Time& now) {
  net::DatagramIo& io = attachment_->io();
  attachment_->watch(now, [&](std::uint16_t port_id, bool up) {
    for (Member* member : members_) member->membership().on_link(port_id, up, now);
  });
  const auto take = [&](const Endpoint& from, Buffer payload) {
    const auto job = peek_job(payload.bytes());
    for (Member* member : members_) {
      if (member->membership().job() != job || member->membership().over()) continue;
      return member->membership().receive(from, std::move(payload), now);
    }
    ++unclaimed_;
  };
  std::size_t received = io.receive(take);
  for (std::size_t last = received, bursts = 1; last >= limits::kBurst && bursts < kMostBursts &&
                                                claims_.load(std::memory_order_relaxed) == 0;
       ++bursts) {
    io.flush();
    now = net::now();  // round trips are measured
    received += last = io.receive(take);
  }
  receive_groups(now);  // before ranks ask for a BEACON
  return received;
}

/// What comes to the groups of the sessions is received. Beyond kMaxGroups the aggregators find
/// that they are not heard, and send by unicast.
void Progress::receive_groups(Time now) {
  std::array<std::uint32_t, net::kMaxGroups> groups{};
  auto end = groups.begin();
  for (Member* member : members_)
    member->membership().for_each_group([&](std::uint32_t group) {
      if (end != groups.end() && std::find(groups.begin(), end, group) == end) *end++ = group;
    });
  attachment_->set_groups({groups.begin(), end}, now);
}

}  // namespace sluice
