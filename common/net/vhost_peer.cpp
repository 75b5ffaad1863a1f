#include "common/net/vhost_peer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/limits.hpp"
#include "common/memory/closing.hpp"

namespace sluice::net {
namespace {

// ------------------------------------------------------------------- messages of vhost-user
// Numbers and layouts are the protocol's (QEMU's docs/interop/vhost-user.rst).
enum Request : std::uint32_t {
  kGetFeatures = 1,
  kSetFeatures = 2,
  kSetOwner = 3,
  kResetOwner = 4,
  kSetMemTable = 5,
  kSetVringNum = 8,
  kSetVringAddr = 9,
  kSetVringBase = 10,
  kGetVringBase = 11,
  kSetVringKick = 12,
  kSetVringCall = 13,
  kSetVringErr = 14,
  kGetProtocolFeatures = 15,
  kSetProtocolFeatures = 16,
  kGetQueueNum = 17,
  kSetVringEnable = 18,
  kSetStatus = 39,
  kGetStatus = 40,
};

struct Header {
  std::uint32_t request;
  std::uint32_t flags;
  std::uint32_t size;  ///< of what follows
};
static_assert(sizeof(Header) == 12);

/// The longest message is a table of kRegions regions.
constexpr std::size_t kRegions = 8;
constexpr std::size_t kPayloadMost = 8 + kRegions * 32;
constexpr std::size_t kDescriptorsMost = 253;  // in one message (SCM_MAX_FD)

constexpr std::uint32_t kVersion = 1;  // in the flags of every message

constexpr std::uint64_t kRingMask = 0xff;       // of the payload of a message with an eventfd
constexpr std::uint64_t kNoDescriptor = 0x100;  // there is none

struct Message {
  Header header{};
  std::array<std::byte, kPayloadMost> payload{};
  std::array<int, kDescriptorsMost> descriptors{};
  std::size_t count = 0;  // of descriptors

  template <class Number>
  Number number(std::size_t at) const {
    Number value = 0;
    if (at + sizeof value <= header.size) std::memcpy(&value, payload.data() + at, sizeof value);
    return value;
  }
  std::span<const int> passed() const { return std::span(descriptors).first(count); }
  void close_passed() {
    for (const int each : passed()) memory::close_of_peer(each);
    count = 0;
  }
};

// ------------------------------------------------------------------------------------ peers
struct Expected {
  unsigned rings = 0;
  bool refused = false;
};

/// A worker may have so many if its daemon had more lanes before; a packet tells it so.
constexpr std::size_t kMaxRings = 2 * limits::kMaxLanes;

/// The number of descriptors of each ring.
using Sizes = std::array<std::uint32_t, kMaxRings>;

struct Connection {
  std::string path;
  pid_t connecting = 0;  // the thread on which DPDK may not have registered it yet; 0: it has
  unsigned rings = 0;    // how many it was offered
  Sizes sizes{};
  std::array<std::byte, kPayloadMost> payload{};  // of the message that DPDK reads now
  std::size_t at = 0;
  std::size_t left = 0;
};

/// Never destroyed, as DPDK's threads never end.
struct Registry {
  std::mutex mutex;
  std::map<std::string, Expected> expected;  // by path
  std::map<int, Connection> connections;     // by descriptor
  std::vector<RefusedPeer> refused;
};

Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

/// Most calls are not about a peer, and take no lock.
std::array<std::atomic<bool>, limits::kMaxVhostDescriptor> is_peer{};

bool may_be_peer(int fd) {
  return fd >= 0 && static_cast<std::size_t>(fd) < is_peer.size() &&
         is_peer[static_cast<std::size_t>(fd)].load(std::memory_order_acquire);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int connect_anyway(int fd, const sockaddr* address, socklen_t length) {
  static auto* const real = next<int(int, const sockaddr*, socklen_t)>("connect");
  return real(fd, address, length);
}

ssize_t recvmsg_anyway(int fd, msghdr* message, int flags) {
  static auto* const real = next<ssize_t(int, msghdr*, int)>("recvmsg");
  return real(fd, message, flags);
}

ssize_t read_anyway(int fd, void* into, std::size_t bytes) {
  static auto* const real = next<ssize_t(int, void*, std::size_t)>("read");
  return real(fd, into, bytes);
}

int close_anyway(int fd) {
  static auto* const real = next<int(int)>("close");
  return real(fd);
}

// -------------------------------------------------------------------------- what may be passed
/// The kernel's name for the file. It does not ask the file itself: a request to a file of FUSE may
/// block for ever.
std::string kind_of(int fd) {
  std::array<char, 64> name;
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name.data(), name.size());
  return length < 0 ? "unknown" : std::string(name.data(), static_cast<std::size_t>(length));
}

/// The name of any other file begins with '/' or is different: nobody can give a file this name.
bool is_eventfd(int fd) {
  return kind_of(fd) == "anon_inode:[eventfd]";
}

/// Whether it is on tmpfs or hugetlbfs, as a memfd is: no other file has seals, and only the kernel
/// is asked.
bool is_memory(int fd) {
  return fcntl(fd, F_GET_SEALS) >= 0;
}

using Refusal = std::optional<std::string>;

Refusal check_ring(std::uint64_t ring) {
  if (ring < kMaxRings) return std::nullopt;
  return "its ring " + std::to_string(ring) + ": less than " + std::to_string(kMaxRings) +
         " expected";
}

/// All rings together may be as long as the rings that the peer was offered.
Refusal check_size(const Message& message, unsigned rings, Sizes& sizes) {
  const auto ring = message.number<std::uint32_t>(0);
  const auto size = message.number<std::uint32_t>(4);
  if (auto refusal = check_ring(ring)) return refusal;
  if (size < 1 || size > limits::kMaxVhostRing)
    return "its ring of " + std::to_string(size) + " descriptors: 1.." +
           std::to_string(limits::kMaxVhostRing) + " expected";
  sizes[ring] = size;
  const std::uint32_t all = std::accumulate(sizes.begin(), sizes.end(), 0u);
  if (all <= rings * limits::kMaxVhostRing) return std::nullopt;
  return "its rings of " + std::to_string(all) + " descriptors in all: at most " +
         std::to_string(rings * limits::kMaxVhostRing) + " expected";
}

Refusal check_eventfd(const Message& message) {
  const auto value = message.number<std::uint64_t>(0);
  if (auto refusal = check_ring(value & kRingMask)) return refusal;
  const std::size_t expected = (value & kNoDescriptor) != 0 ? 0 : 1;
  if (message.count != expected)
    return "it passed " + std::to_string(message.count) + " descriptors with a ring, " +
           std::to_string(expected) + " expected";
  for (const int each : message.passed()) {
    if (!is_eventfd(each)) return "it passed " + kind_of(each) + ", an eventfd expected";
    // A thread that writes to it must not wait. The peer can reset the flag; then stuck_peer
    // notices.
    fcntl(each, F_SETFL, O_NONBLOCK);
  }
  return std::nullopt;
}

Refusal check_memory(const Message& message) {
  const auto regions = message.number<std::uint32_t>(0);
  if (regions > kRegions || regions != message.count)
    return "it passed " + std::to_string(message.count) + " descriptors with " +
           std::to_string(regions) + " regions of memory, as many and at most " +
           std::to_string(kRegions) + " expected";
  for (const int each : message.passed())
    if (!is_memory(each)) return "it passed " + kind_of(each) + ", a memfd expected";
  return std::nullopt;
}

/// Returns nothing if a worker's driver sends such messages.
Refusal check(const Message& message, unsigned rings, Sizes& sizes) {
  switch (message.header.request) {
    case kSetVringKick:
    case kSetVringCall:
    case kSetVringErr:
      return check_eventfd(message);
    case kSetMemTable:
      return check_memory(message);
    default:
      if (message.count != 0)
        return "it passed " + std::to_string(message.count) + " descriptors with request " +
               std::to_string(message.header.request) + ", none expected";
  }
  switch (message.header.request) {
    case kSetVringNum:
      return check_size(message, rings, sizes);
    case kSetVringAddr:
    case kSetVringBase:
    case kGetVringBase:
    case kSetVringEnable:
      return check_ring(message.number<std::uint32_t>(0));
    case kGetFeatures:
    case kSetFeatures:
    case kSetOwner:
    case kResetOwner:
    case kGetProtocolFeatures:
    case kSetProtocolFeatures:
    case kGetQueueNum:
    case kSetStatus:
    case kGetStatus:
      return std::nullopt;
    default:
      return "it sent request " + std::to_string(message.header.request) +
             ", which no worker sends";
  }
}

// ------------------------------------------------------------------------------------ reading
enum class Took { kMessage, kNothing, kPart, kNoMessage, kLostDescriptors };

void take_descriptors(msghdr& from, Message& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&from); part != nullptr; part = CMSG_NXTHDR(&from, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(message.descriptors.data(), CMSG_DATA(part), count * sizeof(int));
    message.count = count;  // the kernel makes one such part
  }
}

/// A driver sends a message in one piece.
Took take(int fd, Message& message) {
  iovec bytes{&message.header, sizeof message.header};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  const ssize_t peeked = recvmsg_anyway(fd, &header, MSG_PEEK | MSG_DONTWAIT);
  if (peeked <= 0) return Took::kNothing;
  if (static_cast<std::size_t>(peeked) < sizeof(Header)) return Took::kPart;
  if (message.header.size > kPayloadMost) return Took::kNoMessage;

  std::array<iovec, 2> parts{
      {{&message.header, sizeof message.header}, {message.payload.data(), message.header.size}}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMost * sizeof(int))> control{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const std::size_t expected = sizeof(Header) + message.header.size;
  const ssize_t taken = recvmsg_anyway(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (taken <= 0) return Took::kNothing;
  take_descriptors(header, message);
  if ((header.msg_flags & MSG_CTRUNC) != 0) return Took::kLostDescriptors;
  return static_cast<std::size_t>(taken) == expected ? Took::kMessage : Took::kPart;
}

Refusal refusal_of(Took took, const Message& message, unsigned rings, Sizes& sizes) {
  switch (took) {
    case Took::kMessage:
      return check(message, rings, sizes);
    case Took::kNothing:
      return std::nullopt;
    case Took::kPart:
      return "it stopped in the middle of a message";
    case Took::kNoMessage:
      return "it sent a message of " + std::to_string(message.header.size) + " bytes, at most " +
             std::to_string(kPayloadMost) + " expected";
    case Took::kLostDescriptors:
      return "this process may open too few further descriptors (ulimit -n)";
  }
  return std::nullopt;
}

/// Gives DPDK what it asked for: the header, and the descriptors.
void give(const Message& message, msghdr& to) {
  std::memcpy(to.msg_iov->iov_base, &message.header, sizeof message.header);
  to.msg_flags = 0;
  const std::size_t room = to.msg_controllen;
  to.msg_controllen = 0;
  if (message.count == 0 || room < CMSG_SPACE(message.count * sizeof(int))) return;
  to.msg_controllen = CMSG_SPACE(message.count * sizeof(int));
  auto* const rights = static_cast<cmsghdr*>(to.msg_control);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(message.count * sizeof(int));
  std::memcpy(CMSG_DATA(rights), message.descriptors.data(), message.count * sizeof(int));
}

std::string path_in(const sockaddr* address, socklen_t length) {
  sockaddr_un path{};
  if (address == nullptr || address->sa_family != AF_UNIX) return {};
  std::memcpy(&path, address, std::min<std::size_t>(length, sizeof path));
  return {path.sun_path, strnlen(path.sun_path, sizeof path.sun_path)};
}

}  // namespace

void VhostPeers::expect(const std::string& path, unsigned rings) {
  const std::lock_guard lock(registry().mutex);
  registry().expected[path] = {.rings = rings};
}

void VhostPeers::forget(const std::string& path) {
  const std::lock_guard lock(registry().mutex);
  registry().expected.erase(path);
}

void VhostPeers::noted() {
  const std::lock_guard lock(registry().mutex);
  for (auto& [fd, connection] : registry().connections)
    if (connection.connecting == gettid()) connection.connecting = 0;
}

std::vector<RefusedPeer> VhostPeers::take_refused() {
  const std::lock_guard lock(registry().mutex);
  return std::exchange(registry().refused, {});
}

std::string VhostPeers::path_of(int fd) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().connections.find(fd);
  return found == registry().connections.end() ? "" : found->second.path;
}

namespace vhost_calls {

/// DPDK connects again at once when a connection has ended.
int connect(int fd, const sockaddr* address, socklen_t length) {
  const std::string path = path_in(address, length);
  if (path.empty() || fd < 0) return connect_anyway(fd, address, length);
  Registry& all = registry();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.expected.find(path);
    if (found == all.expected.end()) return connect_anyway(fd, address, length);
    if (found->second.refused || static_cast<std::size_t>(fd) >= is_peer.size()) {
      errno = ECONNREFUSED;
      return -1;
    }
  }
  const int result = connect_anyway(fd, address, length);
  if (result != 0) return result;
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.expected.find(path); found != all.expected.end()) {
    Connection made;
    made.path = path;
    made.connecting = gettid();
    made.rings = found->second.rings;
    all.connections[fd] = std::move(made);
    is_peer[static_cast<std::size_t>(fd)].store(true, std::memory_order_release);
  }
  return result;
}

/// A refused message ends the connection, as if the peer had closed it. DPDK reads from a
/// connection before it registers it, and a connection that ends before that ends the process. So
/// until then DPDK only gets a message that changes nothing.
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (!may_be_peer(fd) || message->msg_iovlen != 1 || message->msg_iov->iov_len != sizeof(Header))
    return recvmsg_anyway(fd, message, flags);
  Registry& all = registry();
  unsigned rings = 0;
  Sizes sizes{};
  bool is_noted = false;
  {
    const std::lock_guard lock(all.mutex);
    const Connection& connection = all.connections[fd];
    is_noted = connection.connecting == 0 || connection.connecting == gettid();
    rings = connection.rings;
    sizes = connection.sizes;
  }
  if (!is_noted) {
    std::this_thread::yield();
    give({.header = {.request = kSetOwner, .flags = kVersion, .size = 0}}, *message);
    return sizeof(Header);
  }
  Message taken;
  const Took took = take(fd, taken);
  const Refusal refusal = refusal_of(took, taken, rings, sizes);
  if (refusal) taken.close_passed();
  const std::lock_guard lock(all.mutex);
  Connection& connection = all.connections[fd];
  if (refusal) {
    all.refused.push_back({connection.path, *refusal});
    if (const auto found = all.expected.find(connection.path); found != all.expected.end())
      found->second.refused = true;
  }
  if (refusal || took == Took::kNothing) return 0;
  connection.sizes = sizes;
  connection.payload = taken.payload;
  connection.at = 0;
  connection.left = taken.header.size;
  give(taken, *message);
  return sizeof(Header);
}

/// Gives the rest of the message.
ssize_t read(int fd, void* into, std::size_t bytes) {
  if (!may_be_peer(fd)) return read_anyway(fd, into, bytes);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Connection& connection = all.connections[fd];
  const std::size_t count = std::min(bytes, connection.left);
  if (count != 0) std::memcpy(into, connection.payload.data() + connection.at, count);
  connection.at += count;
  connection.left -= count;
  return static_cast<ssize_t>(count);
}

/// Messages that nobody has read, and the descriptors in them, end with the connection.
int close(int fd) {
  if (!may_be_peer(fd)) return close_anyway(fd);
  {
    const std::lock_guard lock(registry().mutex);
    registry().connections.erase(fd);
    is_peer[static_cast<std::size_t>(fd)].store(false, std::memory_order_release);
  }
  const int last = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (last < 0) return close_anyway(fd);
  shutdown(last, SHUT_RDWR);
  const int result = close_anyway(fd);
  memory::close_of_peer(last);
  return result;
}

/// DPDK's thread that connects again sleeps after a connection.
unsigned sleep(unsigned seconds) {
  static auto* const real = next<unsigned(unsigned)>("sleep");
  VhostPeers::noted();
  return real(seconds);
}

}  // namespace vhost_calls
}  // namespace sluice::net
