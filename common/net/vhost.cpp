#include "common/net/vhost.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <fcntl.h>
#include <rte_vhost.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/memory/own_file.hpp"
#include "common/net/clock.hpp"
#include "common/net/own_directory.hpp"
#include "common/net/stuck_peer.hpp"
#include "common/net/vhost_peer.hpp"

namespace sluice::net {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kWatchPeriod{50};
constexpr unsigned kRingsOfQueue = 2;  // a queue pair
constexpr std::size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;

// DPDK 24.11 refuses a longer device string.
constexpr std::size_t kDeviceMax = 127;
// DPDK separates a device's settings by commas, uses brackets for lists, and has no escape
// character.
constexpr const char* kOfDevices = ",=[]";

void check_path(const std::string& path) {
  if (path.size() > kSocketPathMax)
    throw Error(ErrorCode::kInvalidArgument, "socket path '" + path + "' has " +
                                                 std::to_string(path.size()) +
                                                 " bytes, at most 107 expected");
  if (const std::size_t at = path.find_first_of(kOfDevices); at != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                "socket path '" + path + "': a path without '" + path[at] + "' expected");
}

// A setting with DPDK's default value is left out, as the string must stay short.
std::string with(std::string device, const char* setting, unsigned value, unsigned by_itself) {
  return value == by_itself ? device : std::move(device) + setting + std::to_string(value);
}

// Makes the device string of a socket, and checks it.
void check_device(const std::string& device, const std::string& path) {
  check_path(path);
  if (device.size() > kDeviceMax)
    throw Error(ErrorCode::kInvalidArgument,
                "socket path '" + path + "' has " + std::to_string(path.size()) +
                    " bytes, at most " + std::to_string(kDeviceMax + path.size() - device.size()) +
                    " expected");
}

// A process that can put a socket there is mapped as a worker.
void make_directory(const std::string& directory) {
  make_own_directory(kVhostDirectory, directory);
  if (access(directory.c_str(), R_OK | W_OK | X_OK) != 0)
    throw Error(
        ErrorCode::kUnavailable,
        "vhost directory '" + directory + "' cannot be read and written: " + std::strerror(errno));
}

constexpr const char* kLanesFile = "lanes";

// Descriptors of a port, and of each of its queue pairs: as measured, with some reserve. If a
// worker's daemon has too few of them for all queues, the worker tries again and again, until
// DPDK's driver in it ends the process.
constexpr std::size_t kDescriptorsOfPort = 6;
constexpr std::size_t kDescriptorsOfQueue = 4;

bool has_descriptors_for(std::uint16_t queues) {
  rlimit limit{};
  std::error_code error;
  fs::directory_iterator at("/proc/self/fd", error);
  if (error || getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  std::size_t open = 0;
  for (; !error && at != fs::directory_iterator(); at.increment(error)) ++open;
  return open + kDescriptorsOfPort + queues * kDescriptorsOfQueue <= limit.rlim_cur;
}

// DPDK 24.11 ends the thread that talks with peers when the last socket is removed, and makes
// another thread for the next one. The end takes up to a second, in which no other port is opened
// or closed; and the thread's id changes. So one socket, which is never connected, stays.
void keep_vhost_thread() {
  static bool is_kept = false;
  if (!is_kept)
    is_kept = rte_vhost_driver_register("never connected",
                                        RTE_VHOST_USER_CLIENT | RTE_VHOST_USER_NO_RECONNECT) == 0;
}

}  // namespace

memory::Descriptor tell_lanes(const std::string& directory, std::uint16_t lanes) {
  return memory::replace_own_file(directory + "/" + kLanesFile, std::to_string(lanes) + "\n");
}

std::uint16_t lanes_at(const std::string& directory) {
  const memory::Descriptor file = memory::open_plain_file(directory + "/" + kLanesFile);
  std::array<char, 16> text;
  const ssize_t length = file ? read(file.get(), text.data(), text.size()) : 0;
  unsigned lanes = 1;
  if (length > 0) std::from_chars(text.data(), text.data() + length, lanes);
  return static_cast<std::uint16_t>(std::clamp(lanes, 1u, unsigned{limits::kMaxLanes}));
}

bool is_served_directory(const std::string& directory) {
  const memory::Descriptor file = memory::open_plain_file(directory + "/" + kLanesFile);
  return file && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::string missing_permission(const std::string& directory) {
  const auto is_refused = [](const fs::path& path, int access) {
    return faccessat(AT_FDCWD, path.c_str(), access, AT_EACCESS) != 0 && errno == EACCES;
  };
  if (!is_refused(directory, W_OK | X_OK)) return {};
  std::error_code error;
  fs::path path = fs::absolute(directory, error);
  bool is_above = false;
  struct stat found {};
  while (stat(path.c_str(), &found) != 0) {  // some directory above it refuses access
    if (errno != EACCES || path == path.parent_path()) return {};
    path = path.parent_path();
    is_above = true;
  }
  std::ostringstream text;
  text << "permission is missing: user " << geteuid() << " may not "
       << (is_above ? "enter" : "create sockets in") << " '" << path.string()
       << "', which has mode 0" << std::oct << (found.st_mode & 07777) << std::dec << ", user "
       << found.st_uid << " and group " << found.st_gid;
  if (is_above) {
    text << "; the right to enter (x) is expected";
  } else {
    text << "; be a member of that group, with mode 3770, or be that user";
  }
  return text.str();
}

std::string worker_device(const std::string& directory, const std::string& name,
                          const WorkerDeviceOptions& options) {
  if (name.empty() || name.find('/') != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                "socket name '" + name + "': a file name without '/' expected");
  const std::string path = directory + "/" + name + std::string(kWorkerSocketSuffix);
  // Only DPDK sees its name.
  static std::atomic<unsigned> number{0};
  std::string device = "net_virtio_user" + std::to_string(number++) + ",path=" + path + ",server=1";
  device = with(with(std::move(device), ",queues=", options.queues, 1),
                ",queue_size=", options.queue_size, 256);
  check_device(device, path);
  if (!fs::is_directory(directory))
    throw Error(ErrorCode::kUnavailable,
                "vhost directory '" + directory + "' is missing: is the aggregator running?");
  return device;
}

std::string unique_socket_name(const std::string& prefix) {
  static std::atomic<unsigned> number{0};
  return prefix + "-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

// A real connection would give the worker a peer. A connection with the wrong type of socket does
// not: the kernel answers "wrong type" if some process has the path open, and "refused" if none
// has.
bool socket_is_served(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kSocketPathMax) return false;
  path.copy(address.sun_path, kSocketPathMax);
  const int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;  // no descriptor left: no reason to unplug a worker
  const int result = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = result == 0 ? 0 : errno;
  close(probe);
  return error != ECONNREFUSED && error != ENOENT;
}

VhostDirectory::VhostDirectory(const std::string& directory, const VhostOptions& options,
                               std::span<BufferPool* const> pools, VhostEvents events)
    : directory_(directory),
      options_(options),
      pools_(pools.begin(), pools.end()),
      events_(std::move(events)) {
  check_path(directory_);
  make_directory(directory_);
  keep_vhost_thread();
  watch_ = std::thread([this] { watch(); });
}

VhostDirectory::~VhostDirectory() {
  links_.clear();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_one();
  watch_.join();
}

void VhostDirectory::released(std::uint16_t port_id) {
  released_[port_id].store(true, std::memory_order_release);
}

PortCounters VhostDirectory::statistics() const {
  PortCounters all = counters_of_gone_;
  for (const auto& [name, link] : links_) all += link.port->statistics();
  return all;
}

/// Empty, which is reported once, while the directory cannot be read: it was removed, or this
/// process has no descriptor left.
std::vector<std::string> VhostDirectory::sockets() {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(directory_, error);
  while (!error && at != fs::directory_iterator()) {
    std::error_code gone;  // a socket may be removed while we look
    if (at->symlink_status(gone).type() == fs::file_type::socket &&
        at->path().extension() == kWorkerSocketSuffix)
      names.push_back(at->path().filename());
    at.increment(error);
  }
  if (error && readable_) events_.refused(directory_, "cannot be read: " + error.message());
  readable_ = !error;
  std::sort(names.begin(), names.end());
  return names;
}

void VhostDirectory::poll() {
  drop_stuck();
  for (auto at = links_.begin(); at != links_.end();) {
    const auto link = at++;
    look_after(link->first, link->second);
  }
  const std::vector<std::string> names = sockets();
  if (!readable_) return;
  const auto is_gone = [&](const auto& entry) {
    return !std::binary_search(names.begin(), names.end(), entry.first);
  };
  std::erase_if(refused_, is_gone);
  std::erase_if(turns_, is_gone);
  for (const std::string& name : in_turn(names)) consider(name);
}

/// Those that have no port, in the order in which they have waited, whatever their names are.
std::vector<std::string> VhostDirectory::in_turn(const std::vector<std::string>& names) {
  std::vector<std::string> waiting;
  for (const std::string& name : names) {
    if (turns_.try_emplace(name, next_turn_).second) ++next_turn_;
    if (!links_.contains(name)) waiting.push_back(name);
  }
  std::sort(waiting.begin(), waiting.end(), [this](const auto& one, const auto& other) {
    return turns_.at(one) < turns_.at(other);
  });
  return waiting;
}

/// If another worker waits for a port, one whose link did not come up in time has to wait again.
/// Removes one at a time.
void VhostDirectory::make_room() {
  Link* silent = nullptr;
  for (auto& [name, link] : links_) {
    if (link.detaching) return;
    if (link.came_up || now() < after(link.last_up, kSilenceLimit)) continue;
    if (!silent || link.last_up < silent->last_up) silent = &link;
  }
  if (!silent) return;
  ++counters_.renewed;
  detach(*silent);
}

void VhostDirectory::watch() {
  StuckPeerWatch talking(kVhostThread);
  std::vector<StuckPeerWatch> polling(options_.polling_threads.begin(),
                                      options_.polling_threads.end());
  std::unique_lock lock(mutex_);
  while (!ended_changed_.wait_for(lock, kWatchPeriod, [this] { return ended_; })) {
    if (const int stuck = talking.look(now()); stuck >= 0) {
      const std::string known = VhostPeers::path_of(stuck);
      // Otherwise the path is as the worker wrote it, and may lead to our directory in another way.
      const std::string written = let_go(stuck);
      interrupt(talking.thread());
      stuck_sockets_.push_back(fs::path(known.empty() ? written : known).filename());
    }
    for (std::size_t lane = 0; lane < polling.size(); ++lane) {
      const int stuck = polling[lane].look(now());
      if (stuck < 0) continue;
      for (std::uint16_t id = 0; id < limits::kMaxPortIds; ++id)
        if (PeerMemoryUse::is_in_use(id, static_cast<std::uint16_t>(lane)))
          stuck_ports_.push_back(id);
      let_go(stuck);
      interrupt(polling[lane].thread());
    }
  }
}

void VhostDirectory::drop_stuck() {
  const std::lock_guard lock(mutex_);
  for (auto& [name, link] : links_) {
    if (std::count(stuck_sockets_.begin(), stuck_sockets_.end(), name) != 0)
      drop(link, "it stopped in the middle of a message");
    if (std::count(stuck_ports_.begin(), stuck_ports_.end(), link.port->id()) != 0)
      drop(link, "it does not take calls");
  }
  for (const RefusedPeer& peer : VhostPeers::take_refused())
    for (auto& [name, link] : links_)
      if (path(name) == peer.path) drop(link, peer.why);
  stuck_sockets_.clear();
  stuck_ports_.clear();
}

void VhostDirectory::drop(Link& link, const std::string& why) {
  link.refusal = why;
  if (!link.detaching) detach(link);
}

void VhostDirectory::detach(Link& link) {
  const std::uint16_t id = link.port->id();
  link.detaching = true;
  released_[id].store(false);
  if (events_.detaching) events_.detaching(id);
}

// A link that is down proves nothing: the worker may not have started its port yet, or restarts it.
// The worker is dead if nobody serves its socket any more, which is true at once when it dies. A
// daemon that died in the moment in which it connected leaves the worker's driver with queues that
// it never enables for the next daemon; another connection repairs that.
void VhostDirectory::look_after(const std::string& name, Link& link) {
  const std::uint16_t id = link.port->id();
  if (has_lost_peer_memory(id)) drop(link, "its memory is gone");
  if (!link.detaching) {
    if (link.port->link_up()) {
      link.last_up = now();
      link.came_up = true;
      return;
    }
    if (socket_is_served(path(name))) {
      if (now() < after(link.last_up, kLinkTimeLimit)) return;
      ++counters_.renewed;
    }
    detach(link);
  }
  if (!released_[id].load(std::memory_order_acquire)) return;
  counters_of_gone_ += link.port->statistics();
  link.port.reset();
  VhostPeers::forget(path(name));
  ++counters_.detached;
  if (!link.refusal.empty()) refuse(name, link.refusal, false);
  if (!link.came_up) turns_[name] = next_turn_++;
  links_.erase(name);
  if (events_.detached) events_.detached(id);
}

void VhostDirectory::consider(const std::string& name) {
  const auto refused = refused_.find(name);
  if (!socket_is_served(path(name))) return remove_stale(name);
  if (refused != refused_.end() && !refused->second) return;
  if (links_.size() >= options_.max_ports) {
    refuse(name, "all " + std::to_string(options_.max_ports) + " vhost ports are taken", true);
    make_room();
  } else if (!has_descriptors_for(options_.port.queues)) {
    refuse(name, "this process may open too few further descriptors (ulimit -n)", true);
  } else {
    attach(name);
  }
}

void VhostDirectory::attach(const std::string& name) {
  Link link;
  link.slot = free_slot();
  PortOptions port = options_.port;
  port.mac = kMac;
  port.device = with("net_vhost" + std::to_string(link.slot) + ",iface=" + path(name) + ",client=1",
                     ",queues=", port.queues, 1);
  try {
    check_device(port.device, path(name));
    VhostPeers::expect(path(name), kRingsOfQueue * port.queues);
    link.port = std::make_unique<Port>(port, pools_);
    VhostPeers::noted();
  } catch (const Error& error) {
    VhostPeers::forget(path(name));
    return refuse(name, error.what(), false);
  }
  assert(link.port->id() < limits::kMaxPortIds);
  link.last_up = now();
  refused_.erase(name);
  ++counters_.attached;
  Port& attached = *links_.emplace(name, std::move(link)).first->second.port;
  if (events_.attached) events_.attached(attached);
}

void VhostDirectory::refuse(const std::string& name, const std::string& reason, bool try_again) {
  if (!refused_.emplace(name, try_again).second) return;
  ++counters_.refused;
  if (events_.refused) events_.refused(path(name), reason);
}

void VhostDirectory::remove_stale(const std::string& name) {
  if (unlink(path(name).c_str()) == 0) ++counters_.stale_removed;
  refused_.erase(name);
}

unsigned VhostDirectory::free_slot() const {
  unsigned slot = 0;
  while (std::any_of(links_.begin(), links_.end(),
                     [&](const auto& entry) { return entry.second.slot == slot; }))
    ++slot;
  return slot;
}

}  // namespace sluice::net
