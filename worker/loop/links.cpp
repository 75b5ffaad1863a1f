#include "worker/loop/links.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include <sluice/error.hpp>

#include "common/memory/thread_without_signals.hpp"
#include "common/net/clock.hpp"
#include "common/net/vhost.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookPeriod = 1ms;    // how often the polling thread looks at links
constexpr auto kOpenPeriod = 100ms;  // how often the background thread looks at directories
constexpr auto kRetryPeriod = 5s;    // after a daemon that did not accept our port
// How long a daemon may take to accept a port; also bounds our own end.
constexpr Duration kBackgroundWait = 1s;
// How long a link is down before it is logged: a daemon may come back at once.
constexpr auto kWorthSaying = 100ms;
constexpr auto kFinalReadTime = 200ms;  // for a daemon that may have no core, to read what we sent
// How often directories are looked at while the caller waits.
constexpr auto kFirstPeriod = 10ms;

/// False also if it cannot be found out.
bool is_directory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

}  // namespace

Links::Links(std::vector<LinkPlan> plans, net::BufferPool& payloads, net::DatagramIo& io,
             std::shared_ptr<spdlog::logger> logger)
    : payloads_(payloads), io_(io), logger_(std::move(logger)) {
  for (LinkPlan& plan : plans) {
    Link link;
    link.plan = std::move(plan);
    links_.push_back(std::move(link));
  }
}

Links::~Links() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_one();
  if (background_.joinable()) background_.join();
  set_groups({}, net::now());  // otherwise switches would forward to us for minutes
  io_.flush();
  for (const Link& link : links_) {
    if (!link.port) continue;
    const std::uint16_t id = link.port->id();
    if (!link.plan.directory.empty() && link.port->link_up())
      io_.await_reading(id, net::kVhostAggregatorIpv4, kFinalReadTime);
    io_.remove_port(id);
  }
}

// ------------------------------------------------------------------------------------- opening
void Links::open(const std::vector<std::vector<std::size_t>>& choices, Duration timeout) {
  const Time deadline = after(net::now(), timeout);
  for (const std::vector<std::size_t>& choice : choices) open_one_of(choice, deadline);
  bool complete = true;
  for (const Link& link : links_) {
    complete = complete && link.opened;
    if (may_open(link)) continue;
    const std::string missing = net::missing_permission(link.plan.directory);
    logger_->warn("{}: {}", name(link), missing.empty() ? "no aggregator is there yet" : missing);
  }
  if (complete) return;
  for (Link& link : links_) link.plan.port.pools_in_use = true;
  background_ = thread_without_signals([this] { open_in_background(); });
}

/// A daemon publishes how many queues it takes before it accepts a port.
void Links::open_one_of(const std::vector<std::size_t>& choice, Time deadline) {
  for (;; std::this_thread::sleep_for(kFirstPeriod)) {
    bool hope = false;
    for (const std::size_t i : choice) {
      Link& link = links_[i];
      if (link.opened) return;
      hope = hope || (is_directory(link.plan.directory) &&
                      net::missing_permission(link.plan.directory).empty());
      if (!may_open(link)) continue;
      if (auto port = try_to_open(link, std::max(deadline - net::now(), kBackgroundWait)))
        return take_over(link, std::move(port));
    }
    if (!hope || net::now() >= deadline) fail(choice);
  }
}

bool Links::may_open(const Link& link) {
  return link.plan.directory.empty() || net::is_served_directory(link.plan.directory);
}

/// Returns null if the daemon does not accept the port, or has just died; the reason is kept.
std::unique_ptr<net::Port> Links::try_to_open(Link& link, Duration peer_timeout) {
  net::PortOptions options = link.plan.port;
  const std::string& directory = link.plan.directory;
  try {
    if (!directory.empty()) {
      options.peer_timeout = peer_timeout;
      options.queues = net::lanes_at(directory);
      options.device = net::worker_device(
          directory, net::unique_socket_name("worker"),
          {.queues = options.queues,
           .queue_size = static_cast<std::uint16_t>(2 * options.descriptors)});  // as Port does
    }
    auto port = std::make_unique<net::Port>(options, payloads_);
    if (!directory.empty() && net::lanes_at(directory) != options.queues) {
      link.failure = "its daemon was about to tell of other lanes";
      return nullptr;
    }
    link.opened = true;
    return port;
  } catch (const Error& error) {
    if (directory.empty() || error.code() != ErrorCode::kUnavailable) throw;
    link.failure = error.what();
    return nullptr;
  }
}

void Links::fail(const std::vector<std::size_t>& choice) const {
  std::string reasons;
  for (const std::size_t i : choice) reasons += (reasons.empty() ? "" : "; ") + why_not(links_[i]);
  throw Error(ErrorCode::kUnavailable, reasons);
}

std::string Links::why_not(const Link& link) {
  if (const std::string missing = net::missing_permission(link.plan.directory); !missing.empty())
    return name(link) + ": " + missing;
  if (!is_directory(link.plan.directory))
    return "vhost directory '" + link.plan.directory + "' is missing: is the aggregator running?";
  if (!may_open(link)) return name(link) + ": no aggregator serves this directory";
  return name(link) +
         ": its aggregator took no further worker; see its vhost-max-ports and its log (" +
         link.failure + ")";
}

std::string Links::name(const Link& link) {
  return link.plan.directory.empty() ? link.plan.port.device : "vhost:" + link.plan.directory;
}

void Links::open_in_background() {
  std::unique_lock lock(mutex_);
  const auto is_open = [](const Link& link) { return link.opened; };
  while (!std::all_of(links_.begin(), links_.end(), is_open)) {
    if (ended_changed_.wait_for(lock, kOpenPeriod, [this] { return ended_; })) return;
    lock.unlock();
    std::vector<Fresh> opened;
    for (Link& link : links_)
      if (!link.opened && net::now() >= link.next_try && may_open(link)) open_late(link, opened);
    lock.lock();
    std::move(opened.begin(), opened.end(), std::back_inserter(fresh_));
    any_fresh_.store(!fresh_.empty(), std::memory_order_release);
  }
}

void Links::open_late(Link& link, std::vector<Fresh>& opened) {
  const bool first = link.failure.empty();
  try {
    if (auto port = try_to_open(link, kBackgroundWait)) {
      opened.push_back({&link, std::move(port)});
      return;
    }
  } catch (const Error& error) {
    link.failure = error.what();
  }
  link.next_try = after(net::now(), kRetryPeriod);
  if (first) logger_->warn("{}", why_not(link));
}

// -------------------------------------------------------------------------- the polling thread
void Links::look(Time now, const Changed& changed) {
  next_look_ = after(now, kLookPeriod);
  if (any_fresh_.load(std::memory_order_acquire)) take_over_fresh();
  for (Link& link : links_) {
    if (!link.port) continue;
    if (const bool up = link.port->link_up(); up != link.up) {
      link.up = up;
      link.changed = now;
      io_.set_link(link.port->id(), up);
      changed(link.port->id(), up);
    }
    if (link.up == link.said_down) say(link, now);
  }
}

/// Both go to the same log level, so that a reader who sees that the link is down also sees that it
/// is up again.
void Links::say(Link& link, Time now) {
  if (!link.up && now < after(link.changed, kWorthSaying)) return;
  link.said_down = !link.up;
  logger_->warn("{}: the link is {}", name(link), link.up ? "up again" : "down");
}

void Links::take_over_fresh() {
  std::vector<Fresh> opened;
  {
    const std::lock_guard lock(mutex_);
    opened.swap(fresh_);
    any_fresh_.store(false, std::memory_order_relaxed);
  }
  for (Fresh& fresh : opened) take_over(*fresh.link, std::move(fresh.port));
}

void Links::take_over(Link& link, std::unique_ptr<net::Port> port) {
  link.port = std::move(port);
  if (!groups_.empty()) receive_groups(link);
  for (std::uint16_t lane = 0; lane < link.port->queues(); ++lane)
    io_.add_port(link.port->view(lane));
}

void Links::set_groups(std::span<const std::uint32_t> groups, Time now) {
  if (std::ranges::equal(groups, groups_)) return;
  groups_.assign(groups.begin(), groups.end());
  for (Link& link : links_)
    if (link.port) receive_groups(link);
  io_.set_groups(groups_, now);  // frames to joined groups must be received
}

void Links::receive_groups(Link& link) {
  if (!link.plan.directory.empty()) return;
  const net::GroupFilter::Means means = link.port->receive_groups(groups_);
  if (groups_.empty() || std::exchange(link.groups_by, means) == means) return;
  if (means == net::GroupFilter::Means::kNone)
    logger_->warn("{}: the device cannot receive multicast groups", name(link));
  else
    logger_->debug("{}: multicast groups are received by {}", name(link), net::name(means));
}

const net::Port* Links::carrier(std::size_t link) const {
  const net::Port* port = links_[link].port.get();
  return port && port->link_up() ? port : nullptr;
}

}  // namespace sluice
