// Ports, and the vhost directory: a worker's and a daemon's port in one process.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/packet_buffer.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/eal_log.hpp"
#include "common/net/socket_paths.hpp"
#include "common/net/stuck_peer.hpp"
#include "common/net/vhost.hpp"
#include "common/net/vhost_peer.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/loopback.hpp"
#include "tests/unit/temporary_directory.hpp"

namespace ports_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

// Holds up the driver of a worker's port before it looks at its peer, on DPDK's interrupt thread.
std::atomic<bool> look_is_held{false};
std::atomic<bool> look_waits{false};

template <class Condition>
bool comes_true(const Condition& condition) {
  for (const Time give_up = now() + 20s; now() < give_up; std::this_thread::yield())
    if (condition()) return true;
  return false;
}

// A daemon's directory with one lane, and workers' ports, all in this process.
struct LocalPair {
  static constexpr std::uint32_t kDaemonIp = 0xA9FE'0001;
  static constexpr std::uint32_t kWorkerIp = 0xA9FE'0002;

  TemporaryDirectory directory;
  BufferPool payloads;
  BufferPool headers;
  DatagramIo lane;
  std::vector<std::uint16_t> attached, detaching, detached;
  std::vector<std::string> refused;
  std::unique_ptr<VhostDirectory> vhost;

  explicit LocalPair(std::size_t max_ports = 31)
      : payloads((start_eal_once(), "pair"), 2048, 8972),
        headers("pair-headers", 512, 0),
        lane(payloads, headers) {
    lane.listen(kListening);
    start_daemon(max_ports);
  }

  void start_daemon(std::size_t max_ports = 31) {
    VhostOptions options;
    options.max_ports = max_ports;
    options.port = port_options("", kDaemonIp, 9000);
    VhostEvents events;
    events.attached = [this](Port& port) {
      attached.push_back(port.id());
      lane.add_port(port.view(0));
    };
    events.detaching = [this](std::uint16_t id) { detaching.push_back(id); };
    events.detached = [this](std::uint16_t id) { detached.push_back(id); };
    events.refused = [this](const std::string&, const std::string& why) { refused.push_back(why); };
    BufferPool* const pools[] = {&payloads};
    vhost = std::make_unique<VhostDirectory>(directory.path, options, pools, events);
  }

  void end_daemon() {
    for (std::uint16_t id : attached) lane.remove_port(id);
    attached.clear();
    vhost.reset();
  }

  // Plugging waits for the daemon, which polls meanwhile.
  std::unique_ptr<Port> start_worker(UdpChecksum checksum = UdpChecksum::kAuto) {
    PortOptions options =
        port_options(worker_device(directory.path, unique_socket_name("w")), kWorkerIp, 9000);
    options.udp_checksum = checksum;
    options.tells = true;
    auto port =
        std::async(std::launch::async, [&] { return std::make_unique<Port>(options, payloads); });
    REQUIRE(poll_until([&] { return port.wait_for(0s) == std::future_status::ready; }));
    return port.get();
  }

  template <class Condition>
  bool poll_until(const Condition& condition) {
    return comes_true([&] { return vhost->poll(), condition(); });
  }

  // What a lane does when told that a port goes.
  void let_go() {
    for (std::uint16_t id : detaching) lane.remove_port(id), vhost->released(id);
    detaching.clear();
  }
};

// A worker's loop over its port.
struct WorkerLoop {
  LocalPair& pair;
  std::unique_ptr<Port> port;
  DatagramIo io;
  Endpoint daemon;

  explicit WorkerLoop(LocalPair& p, UdpChecksum checksum = UdpChecksum::kAuto)
      : pair(p), port(p.start_worker(checksum)), io(p.payloads, p.headers) {
    io.add_port(port->view(0));
    io.listen(kListening);
    daemon = endpoint({{}, LocalPair::kDaemonIp}, kListening, kListening);
    daemon.port_id = port->id();
  }

  // By ARP, through the daemon's lane.
  bool find_daemon() {
    return pair.poll_until([&] {
      const auto mac = io.resolve(port->id(), LocalPair::kDaemonIp, now());
      if (mac) daemon.mac = *mac;
      turn();
      return mac.has_value();
    });
  }

  void turn() {
    io.flush();
    pair.lane.receive([&](const Endpoint& from, Buffer payload) {
      at_daemon.push_back(copy_of(payload.bytes()));
      worker_seen_by_daemon = from;
    });
    pair.lane.flush();
    io.receive([&](const Endpoint& from, Buffer payload) {
      CHECK(from == daemon);
      at_worker.push_back(copy_of(payload.bytes()));
    });
  }

  std::vector<Bytes> at_daemon, at_worker;
  Endpoint worker_seen_by_daemon;
};

// A network namespace for this thread, with two interfaces that are linked.
class OwnNetwork {
 public:
  OwnNetwork() {
    REQUIRE(unshare(CLONE_NEWNET) == 0);
    CHECK(std::system("ip link add left type veth peer name right &&"
                      "ip link set left up && ip link set right up") == 0);
  }
  ~OwnNetwork() {
    CHECK(setns(before_, CLONE_NEWNET) == 0);
    ::close(before_);
  }
  OwnNetwork(const OwnNetwork&) = delete;
  OwnNetwork& operator=(const OwnNetwork&) = delete;

 private:
  int before_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
};

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t recv(int fd, void* into, size_t bytes,
                                                               int flags) {
  if ((flags & MSG_PEEK) != 0 && gettid() == find_thread(kInterruptThread)) {
    look_waits = true;
    comes_true([] { return !look_is_held; });
  }
  return recvfrom(fd, into, bytes, flags, nullptr, nullptr);
}

TEST_CASE("A port that cannot be had says why") {
  Loopback loop;
  const auto code_of = [&](const PortOptions& options, const std::string& text) {
    try {
      const Port port(options, loop.payloads);
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains(options.device) && Contains(text));
      return error.code();
    }
    FAIL("no error");
    return ErrorCode::kProtocol;
  };
  CHECK(code_of(port_options("net_ring0", 1), "in use") == ErrorCode::kUnavailable);
  CHECK(code_of(port_options("net_nonsense0", 1), "cannot be opened") == ErrorCode::kUnavailable);
  CHECK(code_of(port_options("net_af_packet0,iface=nosuchif", 1), "no network interface") ==
        ErrorCode::kUnavailable);
  CHECK(code_of(port_options("net_af_packet0", 1), "iface=") == ErrorCode::kInvalidArgument);
  CHECK(code_of(port_options("net_af_xdp0,iface=nosuchif", 1), "no network interface") ==
        ErrorCode::kUnavailable);
  CHECK(code_of(port_options("net_af_xdp0", 1), "iface=") == ErrorCode::kInvalidArgument);
  BufferPool large("large", 100, 9000);
  CHECK_THROWS_WITH(Port(port_options("net_af_xdp0,iface=lo", 1, 9000), large),
                    Contains("MTU 9000") && Contains("at most 2798"));
  BufferPool tight("tight", 100, 1872);
  CHECK_THROWS_WITH(Port(port_options("net_af_xdp0,iface=lo", 1, 1900), tight),
                    Contains("MTU 1900") && Contains("hold 2048 bytes: at most 1774"));
  CHECK(code_of(port_options("", 1), "device string") == ErrorCode::kInvalidArgument);
  CHECK(code_of(port_options("net_null0", 1, 100), "MTU 100") == ErrorCode::kInvalidArgument);
  PortOptions many = port_options("net_ring7", 1);
  many.queues = 1000;
  CHECK(code_of(many, "1000 queues") == ErrorCode::kInvalidArgument);
  many.queues = 0;
  CHECK(code_of(many, "0 queues") == ErrorCode::kInvalidArgument);
  PortOptions prefix = port_options("net_ring7", 1);
  prefix.prefix = 33;
  CHECK(code_of(prefix, "33") == ErrorCode::kInvalidArgument);
  const Port free_again(port_options("net_ring7", 1), loop.payloads);
  CHECK(free_again.max_payload_bytes() == 1472);
}

TEST_CASE("A port of AF_XDP waits for the kernel to release its queue, and loses no buffers") {
  if (geteuid() != 0) return;  // only root may make a network
  start_eal_once();
  const OwnNetwork network;
  const PortOptions in_use = port_options("net_af_xdp0,iface=left", 1);
  const PortOptions waiting = port_options("net_af_xdp1,iface=left", 2);
  BufferPool pool("in-use", kAfXdpBuffers, 1472);
  BufferPool waiting_pool("waiting", kAfXdpBuffers, 1472);
  auto holder = std::make_unique<Port>(in_use, pool);
  std::promise<void> refused_often;
  EalLog::instance().open(
      [&, refused = 0](LogLevel, std::string_view line) mutable {
        if (line.find("create xsk socket") != line.npos && ++refused == 6)
          refused_often.set_value();
      },
      LogLevel::kWarn);
  auto release = std::async(std::launch::async, [&] {
    const auto said = refused_often.get_future().wait_for(10s);
    holder.reset();
    return said;
  });
  CHECK_NOTHROW(Port(waiting, waiting_pool));
  CHECK(release.get() == std::future_status::ready);
  EalLog::instance().open([](LogLevel, std::string_view) {}, LogLevel::kWarn);
}

TEST_CASE("Addresses are read and written") {
  CHECK(parse_ipv4("169.254.0.1") == 0xA9FE'0001);
  CHECK(format_ipv4(0xA9FE'0001) == "169.254.0.1");
  CHECK_THROWS_WITH(parse_ipv4("300.1.1.1"), Contains("'300.1.1.1' is no IPv4 address"));
  CHECK(format_mac(kThem.mac) == "02:00:00:00:00:02");
}

TEST_CASE("A worker's device string is checked") {
  const TemporaryDirectory directory;
  CHECK_THAT(worker_device(directory.path, "a"),
             Contains("path=" + directory.path + "/a.sluice,server=1"));
  CHECK_THROWS_WITH(worker_device(directory.path, std::string(107, 'x')),
                    Contains("at most 107 expected"));
  const std::string longest(96 - directory.path.size() - std::string("/.sluice").size(), 'x');
  CHECK(worker_device(directory.path, longest).size() < 128);
  CHECK_THROWS_WITH(worker_device(directory.path, longest + "xxxxxxx"), Contains(" expected"));
  CHECK_THROWS_WITH(worker_device(directory.path, "a/b"), Contains("without '/'"));
  CHECK_THROWS_WITH(worker_device(directory.path, "a,b"), Contains("without ','"));
  CHECK_THROWS_WITH(worker_device("/nonexistent", "a"), Contains("is the aggregator running?"));
  CHECK(unique_socket_name("w") != unique_socket_name("w"));
}

TEST_CASE("A daemon's directory is made for its owner alone, or refused clearly") {
  start_eal_once();
  const TemporaryDirectory directory;
  const std::string made = directory.path + "/sockets";
  const VhostDirectory vhost(made, {}, {}, {});
  struct stat status {};
  REQUIRE(stat(made.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK_THROWS_WITH(VhostDirectory(directory.path + "/a/b", {}, {}, {}), Contains("be created"));
  close(open((directory.path + "/file").c_str(), O_CREAT | O_WRONLY, 0600));
  CHECK_THROWS_WITH(VhostDirectory(directory.path + "/file", {}, {}, {}), Contains("no directory"));
}

TEST_CASE("DPDK's threads that wait for peers have the names by which they are found") {
  LocalPair pair;
  WorkerLoop worker(pair);
  REQUIRE(worker.find_daemon());
  CHECK(find_thread(kInterruptThread) != 0);
  CHECK(find_thread(kVhostThread) != 0);
}

TEST_CASE("A peer's messages wait until DPDK has noted its connection") {
  const TemporaryDirectory directory;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (directory.path + "/peer").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto* const named = reinterpret_cast<const sockaddr*>(&address);
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(server, named, sizeof(address)) == 0);
  REQUIRE(listen(server, 1) == 0);
  VhostPeers::expect(address.sun_path, 2);
  const int ours = socket(AF_UNIX, SOCK_STREAM, 0);
  std::promise<void> may_note;
  std::thread connecting([&] {
    CHECK(vhost_calls::connect(ours, named, sizeof(address)) == 0);
    may_note.get_future().wait();
    vhost_calls::sleep(0);
  });
  const int peer = accept(server, nullptr, nullptr);
  REQUIRE(peer >= 0);
  constexpr std::uint32_t kSetOwner = 3;
  constexpr std::uint32_t kGetFeatures = 1;
  const std::uint32_t asked[] = {kGetFeatures, 1, 0};
  REQUIRE(write(peer, asked, sizeof asked) == sizeof asked);
  const auto next = [&] {
    std::uint32_t header[3] = {};
    iovec part{header, sizeof header};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    CHECK(vhost_calls::recvmsg(ours, &message, 0) == sizeof header);
    return header[0];
  };
  while (VhostPeers::path_of(ours).empty()) std::this_thread::yield();
  CHECK(next() == kSetOwner);
  CHECK(next() == kSetOwner);
  may_note.set_value();
  connecting.join();
  CHECK(next() == kGetFeatures);
  VhostPeers::forget(address.sun_path);
  vhost_calls::close(ours);
  close(peer);
  close(server);
}

TEST_CASE("A daemon trusts no directory that others may have put sockets into") {
  start_eal_once();
  const TemporaryDirectory directory;
  const auto made = [&](const char* name, mode_t mode) {
    const std::string path = directory.path + "/" + name;
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
    REQUIRE(chmod(path.c_str(), mode) == 0);
    return path;
  };
  CHECK_NOTHROW(VhostDirectory(made("as-mkdir-makes-it", 0755), {}, {}, {}));
  CHECK_NOTHROW(VhostDirectory(made("for-a-group", 0770), {}, {}, {}));
  for (const mode_t open_to_all : {0777, 01777, 0702})
    CHECK_THROWS_WITH(
        VhostDirectory(made(("open" + std::to_string(open_to_all)).c_str(), open_to_all), {}, {},
                       {}),
        Contains("can be written by everybody"));
  if (geteuid() != 0) return;  // only root can make what is another's
  const std::string foreign = made("foreign", 0755);
  REQUIRE(chown(foreign.c_str(), 65534, 65534) == 0);
  CHECK_THROWS_WITH(VhostDirectory(foreign, {}, {}, {}), Contains("belongs to user 65534"));
}

TEST_CASE("Datagrams of all sizes pass between a worker and its daemon, both ways and in order") {
  for (const UdpChecksum checksum :
       {UdpChecksum::kAuto, UdpChecksum::kSoftware, UdpChecksum::kOffload}) {
    LocalPair pair;
    {
      WorkerLoop worker(pair, checksum);
      REQUIRE(worker.find_daemon());
      CHECK(worker.daemon.mac == VhostDirectory::kMac);
      CHECK_FALSE(worker.port->view(0).off_machine);
      std::vector<Bytes> sent;
      for (std::size_t size : {0, 1, 100, 1472, 4096, 8972}) {
        sent.push_back(pattern(size, static_cast<unsigned>(size)));
        Buffer payload = worker.io.allocate(size);
        std::copy(sent.back().begin(), sent.back().end(), payload.writable().begin());
        worker.io.send(worker.daemon, std::move(payload));
      }
      CHECK(pair.poll_until([&] { return worker.turn(), worker.at_daemon.size() == sent.size(); }));
      CHECK(worker.at_daemon == sent);

      // Back as shared payloads: a header of its own before each.
      std::vector<Buffer> history;
      for (const Bytes& bytes_back : sent) {
        history.push_back(pair.lane.allocate(bytes_back.size()));
        std::copy(bytes_back.begin(), bytes_back.end(), history.back().writable().begin());
        pair.lane.send(worker.worker_seen_by_daemon, history.back().share());
      }
      CHECK(pair.poll_until([&] { return worker.turn(), worker.at_worker.size() == sent.size(); }));
      CHECK(worker.at_worker == sent);
      CHECK(pair.lane.counters().tx_chained == sent.size());
      for (const Buffer& kept : history) CHECK(kept.references() == 1);
    }
    CHECK(pair.poll_until([&] { return pair.let_go(), pair.vhost->ports() == 0; }));
    CHECK(pair.payloads.available() == pair.payloads.size());
    CHECK(pair.headers.available() == pair.headers.size());
  }
}

TEST_CASE("A worker's port wakes who sleeps until frames come") {
  LocalPair pair;
  WorkerLoop worker(pair);
  REQUIRE(worker.find_daemon());
  worker.io.send(worker.daemon, worker.io.allocate(1));
  REQUIRE(pair.poll_until([&] { return worker.turn(), worker.at_daemon.size() == 1; }));
  for (std::size_t i = 1; i <= 3; ++i) {
    RxEvents events;
    REQUIRE(worker.io.arm(events));
    CHECK_FALSE(events.empty());
    const Time begin = now();
    events.wait(1ms);  // nothing has come
    CHECK(now() - begin >= 1ms);
    pair.lane.send(worker.worker_seen_by_daemon, pair.lane.allocate(1));
    pair.lane.flush();
    events.wait(20s);
    events.wait(20s);  // whoever else waits for it wakes, too
    CHECK(now() - begin < 20s);
    worker.turn();
    CHECK(worker.at_worker.size() == i);
  }
}

TEST_CASE(
    "A worker whose port closes waits until its daemon has read what it sent, within a bound") {
  LocalPair pair;
  WorkerLoop worker(pair);
  REQUIRE(worker.find_daemon());
  const std::uint16_t port = worker.port->id();
  worker.io.send(worker.daemon, worker.io.allocate(1));
  CHECK_FALSE(worker.io.await_reading(port, LocalPair::kDaemonIp, 1ms));  // nobody reads
  CHECK_FALSE(worker.io.await_reading(31, LocalPair::kDaemonIp, 20s));    // no such port
  CHECK(pair.poll_until([&] { return worker.turn(), worker.at_daemon.size() == 1; }));
  worker.turn();  // what was asked is answered by now

  worker.io.send(worker.daemon, worker.io.allocate(2));
  auto read = std::async(std::launch::async,
                         [&] { return worker.io.await_reading(port, LocalPair::kDaemonIp, 20s); });
  bool came = false;
  CHECK(pair.poll_until([&] {
    pair.lane.receive([&](const Endpoint&, const Buffer&) { came = true; });
    CHECK((came || read.wait_for(0s) != std::future_status::ready));
    pair.lane.flush();
    return read.wait_for(0s) == std::future_status::ready;
  }));
  CHECK(read.get());
  CHECK(came);
}

TEST_CASE("Nobody sleeps until frames come where a port cannot tell of them") {
  Loopback loop;
  RxEvents events;
  CHECK_FALSE(loop.io.arm(events));
  CHECK(events.empty());
  while (events.add(0)) continue;
  CHECK_FALSE(events.add(0));
  events.clear();
  CHECK(events.empty());
}

TEST_CASE("What a port drops for want of buffers is counted") {
  LocalPair pair;
  WorkerLoop worker(pair);
  REQUIRE(worker.find_daemon());
  worker.io.send(worker.daemon, worker.io.allocate(10));
  REQUIRE(pair.poll_until([&] { return worker.turn(), worker.at_daemon.size() == 1; }));
  CHECK(worker.port->statistics().rx_no_buffer == 0);
  std::vector<Buffer> all;
  while (Buffer buffer = pair.payloads.allocate(10)) all.push_back(std::move(buffer));
  CHECK(pair.poll_until([&] {
    pair.lane.send(worker.worker_seen_by_daemon, all.front().share());
    worker.turn();
    return worker.port->statistics().rx_no_buffer > 0;
  }));
  CHECK(worker.port->statistics().rx_missed == 0);
  CHECK(pair.vhost->statistics().rx_no_buffer == 0);
}

TEST_CASE("A port is closed only when the lane has let go of it") {
  LocalPair pair;
  std::unique_ptr<Port> worker = pair.start_worker();
  REQUIRE(pair.poll_until([&] { return pair.attached.size() == 1 && worker->link_up(); }));
  worker.reset();
  REQUIRE(pair.poll_until([&] { return pair.detaching.size() == 1; }));
  for (int i = 0; i < 3; ++i) pair.vhost->poll();
  CHECK(pair.detaching == pair.attached);
  CHECK(pair.vhost->ports() == 1);
  CHECK(pair.detached.empty());
  pair.let_go();
  pair.vhost->poll();
  CHECK(pair.vhost->ports() == 0);
  CHECK(pair.detached == pair.attached);
}

TEST_CASE("Workers beyond the limit are refused once, and served when a port is free") {
  LocalPair pair(1);
  std::unique_ptr<Port> first = pair.start_worker();
  REQUIRE(pair.poll_until([&] { return pair.attached.size() == 1 && first->link_up(); }));
  auto second = std::async(std::launch::async, [&] {
    const PortOptions options = port_options(
        worker_device(pair.directory.path, unique_socket_name("w")), LocalPair::kWorkerIp, 9000);
    return std::make_unique<Port>(options, pair.payloads);
  });
  CHECK(pair.poll_until([&] { return !pair.refused.empty(); }));
  for (int i = 0; i < 3; ++i) pair.vhost->poll();
  CHECK(pair.refused == std::vector<std::string>{"all 1 vhost ports are taken"});
  CHECK(pair.vhost->counters().refused == 1);
  CHECK(pair.attached.size() == 1);
  first.reset();
  CHECK(pair.poll_until([&] { return pair.let_go(), pair.attached.size() == 2; }));
  CHECK(pair.poll_until([&] { return second.wait_for(0s) == std::future_status::ready; }));
  CHECK(pair.poll_until([served = second.get()] { return served->link_up(); }));
}

TEST_CASE("Who only serves sockets keeps no worker from a port") {
  LocalPair pair(1);
  std::vector<int> mute;
  for (const char* const name : {"/a.sluice", "/b.sluice"}) {  // before a worker's by name
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (pair.directory.path + name).copy(address.sun_path, sizeof(address.sun_path) - 1);
    mute.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    REQUIRE(bind(mute.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(mute.back(), 64) == 0);
  }
  REQUIRE(pair.poll_until([&] { return pair.attached.size() == 1; }));
  auto worker = std::async(std::launch::async, [&] {
    PortOptions options = port_options(worker_device(pair.directory.path, unique_socket_name("w")),
                                       LocalPair::kWorkerIp, 9000);
    options.peer_timeout = 60s;
    return std::make_unique<Port>(options, pair.payloads);
  });
  CHECK(pair.poll_until(
      [&] { return pair.let_go(), worker.wait_for(0s) == std::future_status::ready; }));
  CHECK(pair.poll_until([served = worker.get()] { return served->link_up(); }));
  for (const int fd : mute) close(fd);
}

TEST_CASE("A socket is attached whatever its name, or the refusal names the character") {
  for (char c = '!'; c <= '~'; ++c) {
    if (c == '/') continue;
    LocalPair pair;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (pair.directory.path + "/a" + c + "b.sluice")
        .copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    REQUIRE(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(server, 4) == 0);
    REQUIRE(pair.poll_until([&] { return pair.attached.size() + pair.refused.size() == 1; }));
    INFO(c);
    CHECK(pair.attached.empty() == (std::string(",=[]").find(c) != std::string::npos));
    if (!pair.refused.empty())
      CHECK_THAT(pair.refused[0], Contains(std::string("a path without '") + c + "' expected"));
    close(server);
  }
}

TEST_CASE("A worker does not wait for its aggregator for ever") {
  start_eal_once();
  const TemporaryDirectory directory;
  BufferPool pool("lonely", 512, 1472);
  PortOptions options = port_options(worker_device(directory.path, "lonely"), 1);
  options.peer_timeout = 10ms;
  CHECK_THROWS_WITH(Port(options, pool), Contains("no aggregator connected"));
  CHECK(std::filesystem::is_empty(directory.path));
  CHECK(pool.available() == pool.size());
}

TEST_CASE("A socket that nobody serves is removed, one that is served is not touched") {
  LocalPair pair;
  const std::string path = pair.directory.path + "/stale.sluice";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(listen(server, 1) == 0);
  CHECK(socket_is_served(path));
  fcntl(server, F_SETFL, O_NONBLOCK);
  CHECK(accept(server, nullptr, nullptr) == -1);  // asking left no connection behind
  close(server);
  CHECK_FALSE(socket_is_served(path));
  pair.vhost->poll();
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(pair.vhost->counters().stale_removed == 1);
  CHECK(pair.attached.empty());
}

TEST_CASE("A port whose link does not come up is plugged again") {
  LocalPair pair;
  // Serves its socket as a worker does, takes every connection and never says a word.
  const std::string path = pair.directory.path + "/mute.sluice";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  REQUIRE(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(listen(server, 4) == 0);
  const Time begin = now();
  CHECK(pair.poll_until([&] { return pair.let_go(), pair.attached.size() == 2; }));
  CHECK(now() - begin >= VhostDirectory::kLinkTimeLimit);
  CHECK(pair.vhost->counters().renewed == 1);
  for (int connection = 0; connection < 2; ++connection) {
    const int peer = accept(server, nullptr, nullptr);
    CHECK(peer >= 0);
    close(peer);
  }
  close(server);
}

TEST_CASE("A socket that is no worker's is left alone, served or not") {
  LocalPair pair;
  const std::string path = pair.directory.path + "/others.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  pair.vhost->poll();
  close(server);
  pair.vhost->poll();
  CHECK(std::filesystem::exists(path));
  CHECK(pair.attached.empty());
}

TEST_CASE("A worker outlives its daemon and finds the next one at the same address") {
  LocalPair pair;
  WorkerLoop worker(pair);
  REQUIRE(worker.find_daemon());
  const pid_t talking = find_thread(kVhostThread);
  REQUIRE(talking != 0);
  for (int life = 0; life < 2; ++life) {
    pair.end_daemon();
    CHECK(comes_true([&] { return !worker.port->link_up(); }));
    CHECK(find_thread(kVhostThread) == talking);
    pair.start_daemon();
    worker.at_daemon.clear();
    worker.io.send(worker.daemon, worker.io.allocate(100));
    CHECK(pair.poll_until([&] { return worker.turn(), !worker.at_daemon.empty(); }));
  }
}

TEST_CASE("A link is up as the driver says where descriptors cannot be listed") {
  LocalPair pair;
  WorkerLoop worker(pair);
  REQUIRE(pair.poll_until([&] { return !pair.attached.empty(); }));
  const std::string socket = std::filesystem::directory_iterator(pair.directory.path)->path();
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = dup(STDIN_FILENO);
  close(next);
  const rlimit no_more{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &no_more) == 0);
  const std::optional<int> found = find_accepted_at(socket);
  const bool is_up = comes_true([&] { return worker.port->link_up(); });
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(found == std::nullopt);
  CHECK(is_up);
}

TEST_CASE("A link is down whose peer went before the driver had looked at it") {
  LocalPair pair;
  WorkerLoop worker(pair);
  const std::string socket = std::filesystem::directory_iterator(pair.directory.path)->path();
  pair.end_daemon();
  REQUIRE(comes_true([&] { return find_accepted_at(socket) == -1; }));
  look_waits = false;
  look_is_held = true;
  pair.start_daemon();
  CHECK(pair.poll_until([&] { return look_waits && worker.port->link_up(); }));
  pair.end_daemon();
  look_is_held = false;
  CHECK(comes_true([&] { return !worker.port->link_up(); }));
  pair.start_daemon();
  CHECK(pair.poll_until([&] { return worker.port->link_up(); }));
}

}  // namespace ports_tests
