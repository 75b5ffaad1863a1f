// Workers on the same machine as their aggregator use vhost-user ports over sockets in a directory.
//
// The worker creates a socket and serves it (virtio-user, server mode). The daemon watches its
// directory and connects to every socket that it finds (vhost, client mode, with automatic
// reconnection). So a socket belongs to one worker only, and either side may restart. A worker that
// starts first waits for the daemon, which publishes how many queues the worker's port needs.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/limits.hpp"
#include "common/memory/descriptor.hpp"
#include "common/net/peer_memory.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"

namespace sluice::net {

/// Every local link is a network of its own, with these two addresses.
inline constexpr std::uint32_t kVhostAggregatorIpv4 = 0xA9FE'0001;  // 169.254.0.1
inline constexpr std::uint32_t kVhostWorkerIpv4 = 0xA9FE'0002;
inline constexpr std::uint8_t kVhostPrefix = 16;

/// The suffix of a worker's socket; the daemon ignores all other names.
inline constexpr std::string_view kWorkerSocketSuffix = ".sluice";

/// How errors name the directory.
inline constexpr const char* kVhostDirectory = "vhost directory";

/// Publishes how many lanes the daemon of `directory` has (`lanes`: 1..8): a worker's port needs as
/// many queues. Call it before the daemon accepts a worker. While the returned descriptor is open,
/// the directory counts as served; no other user can change that. Throws Error kUnavailable.
memory::Descriptor tell_lanes(const std::string& directory, std::uint16_t lanes);
/// 1 if nothing is published.
std::uint16_t lanes_at(const std::string& directory);
/// Whether a daemon that has published its lanes is alive.
bool is_served_directory(const std::string& directory);

/// Why this process may not put a worker's socket into the directory, for a person: which path
/// refuses it, and whom that path permits. Empty if it may, or if the path leads nowhere.
std::string missing_permission(const std::string& directory);

struct WorkerDeviceOptions {
  std::uint16_t queues = 1;        ///< at most as many as the daemon offers, which are its lanes
  std::uint16_t queue_size = 256;  ///< descriptors of each ring, a power of two
};

/// The device string of a worker's port whose socket is `directory`/`name`.sluice. Throws Error
/// kInvalidArgument if that path is too long for it (72 to 96 bytes, depending on the settings) or
/// has a comma, or if `name` is not a plain name; kUnavailable if the directory is missing. `name`
/// must be new: take one from unique_socket_name.
std::string worker_device(const std::string& directory, const std::string& name,
                          const WorkerDeviceOptions& options = {});

/// "<prefix>-<pid>-<number>", different for every call on this machine.
std::string unique_socket_name(const std::string& prefix);

/// Whether some process serves the socket at `path`. The other side does not notice the check.
bool socket_is_served(const std::string& path);

struct VhostOptions {
  std::size_t max_ports = 31;  ///< of DPDK's 32 ports, which include other kinds
  PortOptions port;            ///< for every port; `device` and `mac` are set here
  /// Names of the threads that poll the ports, if there are any.
  std::vector<std::string> polling_threads;
};

/// What a VhostDirectory reports to its owner, from within poll().
struct VhostEvents {
  /// A worker's socket was plugged: the lanes may poll the port now. Nothing comes until the link
  /// is up.
  std::function<void(Port&)> attached;
  /// The worker has gone: every lane must stop polling; then call `VhostDirectory::released`.
  std::function<void(std::uint16_t port_id)> detaching;
  /// The port is closed; its id may be used again.
  std::function<void(std::uint16_t port_id)> detached;
  /// A socket was not plugged, and why; reported once for each socket. Or the directory itself
  /// cannot be read at the moment, also reported once.
  std::function<void(const std::string& path, const std::string& reason)> refused;
};

/// The daemon's side. All functions except `released` are for one control thread.
class VhostDirectory {
 public:
  /// Our address on every port. DPDK's own addresses differ from port to port, and after a restart
  /// a worker that remembers its peer's address may be on another port.
  static constexpr MacAddress kMac{0x02, 's', 'l', 'u', 'c', 'e'};

  /// A port whose link is down for this time is unplugged and plugged again.
  static constexpr Duration kLinkTimeLimit = std::chrono::seconds(2);
  /// The same for a port whose link never came up, while other workers wait for a port. It then
  /// waits as they do: a process that only serves sockets must not keep workers out.
  static constexpr Duration kSilenceLimit = std::chrono::seconds(1);

  struct Counters {
    std::uint64_t attached = 0;
    std::uint64_t detached = 0;
    std::uint64_t refused = 0;        ///< sockets, not attempts
    std::uint64_t stale_removed = 0;  ///< socket files that nobody served
    /// Unplugged because no link came up; they will be plugged again.
    std::uint64_t renewed = 0;
  };

  /// Creates the directory with mode 0700 if it is missing. `pools` is as for Port. Throws Error
  /// kUnavailable if it cannot be created, read and written, or if it is not this user's own: see
  /// make_own_directory.
  VhostDirectory(const std::string& directory, const VhostOptions& options,
                 std::span<BufferPool* const> pools, VhostEvents events);

  /// Closes the ports. No lane may poll them any more.
  ~VhostDirectory();
  VhostDirectory(const VhostDirectory&) = delete;
  VhostDirectory& operator=(const VhostDirectory&) = delete;

  /// Looks for new, dead and stuck workers. Call it ten times a second or more: the first call
  /// after a worker's death notices it. A worker that stops in the middle of a message would block
  /// all others, and a worker can take its memory away: such workers are unplugged and refused.
  void poll();

  /// Reports, from any thread, that no lane polls the port any more. The next poll() closes it.
  void released(std::uint16_t port_id);

  std::size_t ports() const { return links_.size(); }
  const Counters& counters() const { return counters_; }

  /// The sum over all ports, including those that have gone.
  PortCounters statistics() const;

 private:
  struct Link {
    std::unique_ptr<Port> port;
    unsigned slot = 0;
    Time last_up;  // or when it was plugged
    bool came_up = false;
    bool detaching = false;
    std::string refusal = {};  // why it must not be plugged again
  };

  std::vector<std::string> sockets();
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  void watch();
  void drop_stuck();
  void look_after(const std::string& name, Link& link);
  void drop(Link& link, const std::string& why);
  void detach(Link& link);
  std::vector<std::string> in_turn(const std::vector<std::string>& names);
  void make_room();
  void consider(const std::string& name);
  void attach(const std::string& name);
  void refuse(const std::string& name, const std::string& reason, bool try_again);
  void remove_stale(const std::string& name);
  unsigned free_slot() const;

  std::string directory_;
  VhostOptions options_;
  std::vector<BufferPool*> pools_;
  VhostEvents events_;
  std::map<std::string, Link> links_;  // by name of the socket
  // Refused sockets, and whether a free port would be enough.
  std::map<std::string, bool> refused_;
  // Of all sockets: when each came, or last had a port.
  std::map<std::string, std::uint64_t> turns_;
  std::uint64_t next_turn_ = 0;
  std::array<std::atomic<bool>, limits::kMaxPortIds> released_{};
  bool readable_ = true;
  Counters counters_;
  PortCounters counters_of_gone_;

  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;                      // guarded by mutex_, as are the following
  std::vector<std::string> stuck_sockets_;  // names of sockets
  std::vector<std::uint16_t> stuck_ports_;  // ports whose worker cannot be signalled
  std::thread watch_;  // a thread, as the control thread sometimes waits for a lane
};

}  // namespace sluice::net
