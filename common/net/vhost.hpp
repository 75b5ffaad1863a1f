// Workers on the same machine as their aggregator: vhost-user ports over sockets in a directory.
//
// The worker creates a socket and serves it (virtio-user, server mode); the daemon watches its
// directory and connects to every socket it finds (vhost, client mode, reconnecting by itself). So
// a socket belongs to one worker only, and either side may restart. A worker that starts first
// waits for the daemon, which says how many queues its port needs.
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

/// Every local link is a network of its own, with these two.
inline constexpr std::uint32_t kVhostAggregatorIpv4 = 0xA9FE'0001;  // 169.254.0.1
inline constexpr std::uint32_t kVhostWorkerIpv4 = 0xA9FE'0002;
inline constexpr std::uint8_t kVhostPrefix = 16;

/// How a socket's name ends that is a worker's; the daemon leaves all others alone.
inline constexpr std::string_view kWorkerSocketSuffix = ".sluice";

/// What errors call the directory where they are.
inline constexpr const char* kVhostDirectory = "vhost directory";

/// How many lanes the daemon has that serves `directory`: a worker's port there needs as many
/// queues. Told before the daemon takes a worker. `lanes`: 1..8. While what it returns is open, the
/// directory is served: no other user can make it look so, or otherwise. Throws Error kUnavailable.
memory::Descriptor tell_lanes(const std::string& directory, std::uint16_t lanes);
/// 1 if nothing is told.
std::uint16_t lanes_at(const std::string& directory);
/// Whether a daemon that has told its lanes is alive.
bool is_served_directory(const std::string& directory);

/// Why this process may not put a worker's socket into the directory, for a person: which path
/// refuses it, and whom that would let in. Empty if it may, or if the path leads nowhere.
std::string missing_permission(const std::string& directory);

struct WorkerDeviceOptions {
  std::uint16_t queues = 1;        ///< at most what the daemon offers: its lanes
  std::uint16_t queue_size = 256;  ///< descriptors of each ring, a power of two
};

/// The device string of a worker's port whose socket is `directory`/`name`.sluice. Throws Error
/// kInvalidArgument if that path is too long for it (72 to 96 bytes, as the settings are) or has a
/// comma, or `name` is no plain name; kUnavailable if the directory is missing. `name` must be new:
/// take one from unique_socket_name.
std::string worker_device(const std::string& directory, const std::string& name,
                          const WorkerDeviceOptions& options = {});

/// "<prefix>-<pid>-<number>", different for every call on this machine.
std::string unique_socket_name(const std::string& prefix);

/// True while some process has the socket at `path` open to serve it. No trace at the other side.
bool socket_is_served(const std::string& path);

struct VhostOptions {
  std::size_t max_ports = 31;                ///< of the 32 that DPDK has, with other kinds counted
  PortOptions port;                          ///< of every port; its `device` and `mac` are made up
  std::vector<std::string> polling_threads;  ///< names of those that poll the ports, if any
};

/// What a VhostDirectory tells its owner, from within poll().
struct VhostEvents {
  /// A worker's socket was plugged: the lanes may poll the port now. It is quiet until link up.
  std::function<void(Port&)> attached;
  /// The worker is gone: every lane must stop polling, then `VhostDirectory::released` be called.
  std::function<void(std::uint16_t port_id)> detaching;
  /// The port is closed; its id may come again.
  std::function<void(std::uint16_t port_id)> detached;
  /// A socket was not plugged, and why; said once for each socket. Or the directory itself cannot
  /// be read just now, said once.
  std::function<void(const std::string& path, const std::string& reason)> refused;
};

/// The daemon's side. All but `released` belong to one control thread.
class VhostDirectory {
 public:
  /// Ours on every port. DPDK's own differs from port to port, and after a restart a worker that
  /// kept its peer's address may find itself on another.
  static constexpr MacAddress kMac{0x02, 's', 'l', 'u', 'c', 'e'};

  /// A port whose link is down for so long is unplugged and plugged again.
  static constexpr Duration kLinkTimeLimit = std::chrono::seconds(2);
  /// And one whose link never came up, while others wait for a port. It waits as they do then: who
  /// only serves sockets keeps no worker out.
  static constexpr Duration kSilenceLimit = std::chrono::seconds(1);

  struct Counters {
    std::uint64_t attached = 0;
    std::uint64_t detached = 0;
    std::uint64_t refused = 0;        ///< sockets, not attempts
    std::uint64_t stale_removed = 0;  ///< socket files that nobody served
    std::uint64_t renewed = 0;        ///< unplugged because no link came up, to be plugged again
  };

  /// Creates the directory with mode 0700 if it is missing. `pools` as for Port. Throws Error
  /// kUnavailable if it cannot be created, read and written, or if it is not this user's own: see
  /// make_own_directory.
  VhostDirectory(const std::string& directory, const VhostOptions& options,
                 std::span<BufferPool* const> pools, VhostEvents events);

  /// Closes the ports; no lane may poll them any more.
  ~VhostDirectory();
  VhostDirectory(const VhostDirectory&) = delete;
  VhostDirectory& operator=(const VhostDirectory&) = delete;

  /// Looks for new, for dead and for stuck workers. Call it ten times a second or more: a worker's
  /// death is noticed at the first call after it. A worker that stops in the middle of a message
  /// would hold up all others, and one may take its memory away: they are unplugged and refused.
  void poll();

  /// Says, from any thread, that no lane polls the port any more. The next poll() closes it.
  void released(std::uint16_t port_id);

  std::size_t ports() const { return links_.size(); }
  const Counters& counters() const { return counters_; }

  /// Of all ports, with those that are gone.
  PortCounters statistics() const;

 private:
  struct Link {
    std::unique_ptr<Port> port;
    unsigned slot = 0;
    Time last_up;  // or when it was plugged
    bool came_up = false;
    bool detaching = false;
    std::string refusal = {};  // why it is not to be plugged again
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
  std::map<std::string, Link> links_;           // by the socket's name
  std::map<std::string, bool> refused_;         // sockets, and whether a free port would do
  std::map<std::string, std::uint64_t> turns_;  // of all sockets: when each came, or had its turn
  std::uint64_t next_turn_ = 0;
  std::array<std::atomic<bool>, limits::kMaxPortIds> released_{};
  bool readable_ = true;
  Counters counters_;
  PortCounters counters_of_gone_;

  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;                      // guarded by mutex_, as all of these
  std::vector<std::string> stuck_sockets_;  // their names
  std::vector<std::uint16_t> stuck_ports_;  // whose worker cannot be called
  std::thread watch_;  // its own: the control thread waits for the lane now and then
};

}  // namespace sluice::net
