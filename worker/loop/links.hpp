// The ports of one Attachment, one per vhost directory and one for the network. A standby's daemon
// may come later than we do: its port is opened in the background when it is there. A link whose
// daemon has died comes back by itself when the next one serves the same directory.
//
// DPDK takes a new vhost peer on its interrupt thread, which touches nothing that a polling thread
// does: the rings are split rings in our own memory, and the new daemon goes on where they stand.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/time.hpp"
#include "common/log/logger.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"

namespace sluice {

/// A port to be. That of a vhost directory gets its device string when it is opened.
struct LinkPlan {
  std::string directory;  // empty: a network's
  net::PortOptions port;
};

class Links {
 public:
  Links(std::vector<LinkPlan> plans, net::BufferPool& payloads, net::DatagramIo& io,
        std::shared_ptr<spdlog::logger> logger);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// Returns when at least one of each choice of links is open, and leaves the others to the
  /// background. Throws kUnavailable after `timeout`, or at once when there is nothing to wait for.
  void open(const std::vector<std::vector<std::size_t>>& choices, Duration timeout);

  /// A link went down or came up again.
  using Changed = std::function<void(std::uint16_t port_id, bool up)>;

  /// Every turn of the polling thread: takes over what was opened meanwhile, and sees to it that
  /// nothing is queued for links that are down.
  void watch(Time now, const Changed& changed) {
    if (now >= next_look_) look(now, changed);
  }

  /// From now on exactly these multicast groups are received from the network: at most
  /// net::kMaxGroups, in host byte order, none of 224.0.0.0/24. For the polling thread, not from a
  /// handler; cheap when nothing changed.
  void set_groups(std::span<const std::uint32_t> groups, Time now);

  /// Of a link's port: as planned, until it is open.
  std::uint16_t queues(std::size_t link) const {
    return links_[link].port ? links_[link].port->queues() : links_[link].plan.port.queues;
  }

  /// The port of a link, for the polling thread; null while it cannot carry.
  const net::Port* carrier(std::size_t link) const;

 private:
  struct Link {
    LinkPlan plan;
    // The opening thread's: the caller's of open(), later the background.
    bool opened = false;
    Time next_try{};
    std::string failure;  // of the last try
    // The polling thread's.
    std::unique_ptr<net::Port> port;
    bool up = true;
    Time changed{};                                    // when it went up or down
    bool said_down = false;                            // in the log
    std::optional<net::GroupFilter::Means> groups_by;  // as the log has it
  };
  struct Fresh {
    Link* link;
    std::unique_ptr<net::Port> port;
  };

  void open_one_of(const std::vector<std::size_t>& choice, Time deadline);
  static bool may_open(const Link& link);
  std::unique_ptr<net::Port> try_to_open(Link& link, Duration peer_timeout);
  [[noreturn]] void fail(const std::vector<std::size_t>& choice) const;
  static std::string why_not(const Link& link);
  static std::string name(const Link& link);
  void open_in_background();
  void open_late(Link& link, std::vector<Fresh>& opened);
  void look(Time now, const Changed& changed);
  void say(Link& link, Time now);
  void take_over_fresh();
  void take_over(Link& link, std::unique_ptr<net::Port> port);
  void receive_groups(Link& link);

  std::vector<Link> links_;
  net::BufferPool& payloads_;
  net::DatagramIo& io_;
  const std::shared_ptr<spdlog::logger> logger_;
  Time next_look_{};
  std::vector<std::uint32_t> groups_;

  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;        // guarded by mutex_
  std::vector<Fresh> fresh_;  // opened by the background; guarded by mutex_
  std::atomic<bool> any_fresh_{false};
  std::thread background_;
};

}  // namespace sluice
