// The ports of one Attachment: one per vhost directory, and one for the network. A standby's daemon
// may start later than we do; its port is opened in the background when the daemon is there. A link
// whose daemon has died comes back by itself when the next daemon serves the same directory.
//
// DPDK accepts a new vhost peer on its interrupt thread, which touches nothing that a polling
// thread uses: the rings are split rings in our own memory, and the new daemon continues where they
// stand.
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

/// A port that is to be opened. For a vhost directory, the device string is set at that time.
struct LinkPlan {
  std::string directory;  // empty: a network port
  net::PortOptions port;
};

class Links {
 public:
  Links(std::vector<LinkPlan> plans, net::BufferPool& payloads, net::DatagramIo& io,
        std::shared_ptr<spdlog::logger> logger);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// Opens at least one link of each choice, then returns, and leaves the others to the background.
  /// Throws kUnavailable after `timeout`, or at once if there is nothing to wait for.
  void open(const std::vector<std::vector<std::size_t>>& choices, Duration timeout);

  /// A link went down or came up again.
  using Changed = std::function<void(std::uint16_t port_id, bool up)>;

  /// To be called in every turn of the polling thread: takes over ports that were opened meanwhile,
  /// and prevents that packets are queued for links that are down.
  void watch(Time now, const Changed& changed) {
    if (now >= next_look_) look(now, changed);
  }

  /// Sets the multicast groups that are received from the network: at most net::kMaxGroups, in host
  /// byte order, none of 224.0.0.0/24. For the polling thread, but not for a handler. It is cheap
  /// if nothing has changed.
  void set_groups(std::span<const std::uint32_t> groups, Time now);

  /// The queues of a link's port: as planned, until it is open.
  std::uint16_t queues(std::size_t link) const {
    return links_[link].port ? links_[link].port->queues() : links_[link].plan.port.queues;
  }

  /// The port of a link, for the polling thread; null while it cannot carry packets.
  const net::Port* carrier(std::size_t link) const;

 private:
  struct Link {
    LinkPlan plan;
    // For the thread that opens: the caller of open(), later the background thread.
    bool opened = false;
    Time next_try{};
    std::string failure;  // of the last attempt
    // For the polling thread.
    std::unique_ptr<net::Port> port;
    bool up = true;
    Time changed{};                                    // when it went up or down
    bool said_down = false;                            // as was logged
    std::optional<net::GroupFilter::Means> groups_by;  // as was logged
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
  std::vector<Fresh> fresh_;  // opened in the background; guarded by mutex_
  std::atomic<bool> any_fresh_{false};
  std::thread background_;
};

}  // namespace sluice
