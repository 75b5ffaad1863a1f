// common/net: framing against frames written by hand; DatagramIo over a ring that loops back; ports
// and the vhost directory over a worker's and a daemon's port in one process.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/idle.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/packet_memory.hpp"
#include "common/config/choices.hpp"
#include "common/net/caller_state.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/eal.hpp"
#include "common/net/hand_over.hpp"
#include "common/net/memory_link.hpp"
#include "common/net/vhost.hpp"
#include "tests/unit/one_eal.hpp"

using namespace sluice;
using namespace sluice::net;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

Bytes pattern(std::size_t size, unsigned seed = 0) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 7 + seed);
  return out;
}

Bytes copy_of(std::span<const std::byte> in) {
  return {in.begin(), in.end()};
}

// The Internet checksum by the letter of RFC 1071: sixteen bits at a time, carries added at once.
unsigned reference_sum(std::span<const std::byte> in, unsigned sum = 0) {
  for (std::size_t i = 0; i < in.size(); i += 2) {
    const unsigned high = static_cast<unsigned>(in[i]) << 8;
    const unsigned low = i + 1 < in.size() ? static_cast<unsigned>(in[i + 1]) : 0;
    sum += high | low;
    if (sum > 0xffff) sum -= 0xffff;
  }
  return sum;
}

// UDP's, of a whole frame: pseudo header, UDP header, payload.
unsigned reference_udp_sum(const Bytes& frame) {
  const std::span<const std::byte> all(frame);
  unsigned sum = reference_sum(all.subspan(26, 8));
  sum = reference_sum(bytes({0, 17}), sum);
  sum = reference_sum(all.subspan(38, 2), sum);
  return reference_sum(all.subspan(34), sum);
}

const LocalAddress kUs{{0x02, 0, 0, 0, 0, 0x01}, 0xC0A8'0001};    // 192.168.0.1
const LocalAddress kThem{{0x02, 0, 0, 0, 0, 0x02}, 0xC0A8'00C7};  // 192.168.0.199

Endpoint endpoint(const LocalAddress& peer, std::uint16_t theirs, std::uint16_t ours) {
  Endpoint e;
  e.mac = peer.mac;
  e.ipv4 = peer.ipv4;
  e.udp_port = theirs;
  e.local_udp_port = ours;
  return e;
}

Bytes frame_with(const LocalAddress& from, const Endpoint& to, const Bytes& payload,
                 UdpChecksum checksum = UdpChecksum::kSoftware) {
  Bytes frame(kHeaderBytes + payload.size());
  const std::span<std::byte, kHeaderBytes> headers(frame.data(), kHeaderBytes);
  write_headers(headers, from, to, payload.size(), 1);
  if (checksum == UdpChecksum::kSoftware) write_udp_checksum(headers, payload);
  std::copy(payload.begin(), payload.end(), frame.begin() + kHeaderBytes);
  return frame;
}

// Puts the IPv4 header checksum right again after a field was changed.
void repair_ip(Bytes& frame) {
  frame[24] = frame[25] = std::byte{0};
  const unsigned sum = ~reference_sum(std::span(frame).subspan(14, 20));
  frame[24] = static_cast<std::byte>(sum >> 8);
  frame[25] = static_cast<std::byte>(sum);
}

struct Fault {
  const char* name;
  FrameVerdict verdict;
  std::uint64_t IoCounters::*counter;
  void (*spoil)(Bytes&);
};

const Fault kFaults[] = {
    {"shorter than Ethernet", FrameVerdict::kTooShort, &IoCounters::rx_too_short,
     [](Bytes& f) { f.resize(13); }},
    {"ends within the headers", FrameVerdict::kTooShort, &IoCounters::rx_too_short,
     [](Bytes& f) { f.resize(41); }},
    {"for another station", FrameVerdict::kOtherMac, &IoCounters::rx_other_mac,
     [](Bytes& f) { f[5] ^= std::byte{0x80}; }},
    {"a broadcast that is not ARP", FrameVerdict::kOtherMac, &IoCounters::rx_other_mac,
     [](Bytes& f) { std::fill_n(f.begin(), 6, std::byte{0xff}); }},
    {"IPv6", FrameVerdict::kOtherProtocol, &IoCounters::rx_other_protocol,
     [](Bytes& f) { f[12] = std::byte{0x86}, f[13] = std::byte{0xdd}; }},
    {"version 5", FrameVerdict::kBadIpHeader, &IoCounters::rx_bad_ip_header,
     [](Bytes& f) { f[14] = std::byte{0x55}, repair_ip(f); }},
    {"header of four words", FrameVerdict::kBadIpHeader, &IoCounters::rx_bad_ip_header,
     [](Bytes& f) { f[14] = std::byte{0x44}, repair_ip(f); }},
    {"IPv4 options", FrameVerdict::kIpOptions, &IoCounters::rx_ip_options,
     [](Bytes& f) { f[14] = std::byte{0x46}, repair_ip(f); }},
    {"IPv4 checksum", FrameVerdict::kBadIpChecksum, &IoCounters::rx_bad_ip_checksum,
     [](Bytes& f) { f[24] ^= std::byte{1}; }},
    {"for another host", FrameVerdict::kOtherIp, &IoCounters::rx_other_ip,
     [](Bytes& f) { f[33] ^= std::byte{1}, repair_ip(f); }},
    {"first fragment", FrameVerdict::kFragment, &IoCounters::rx_fragment,
     [](Bytes& f) { f[20] = std::byte{0x20}, repair_ip(f); }},
    {"last fragment", FrameVerdict::kFragment, &IoCounters::rx_fragment,
     [](Bytes& f) { f[21] = std::byte{0x01}, repair_ip(f); }},
    {"TCP", FrameVerdict::kOtherProtocol, &IoCounters::rx_other_protocol,
     [](Bytes& f) { f[23] = std::byte{6}, repair_ip(f); }},
    {"IPv4 length beyond the frame", FrameVerdict::kBadLength, &IoCounters::rx_bad_length,
     [](Bytes& f) { f[17] = std::byte{0xff}, f[39] = std::byte{0xff - 20}, repair_ip(f); }},
    {"UDP length beyond IPv4's", FrameVerdict::kBadLength, &IoCounters::rx_bad_length,
     [](Bytes& f) { f[39] = std::byte{0xff}; }},
    {"UDP length below its header's", FrameVerdict::kBadLength, &IoCounters::rx_bad_length,
     [](Bytes& f) { f[39] = std::byte{7}, f[17] = std::byte{27}, repair_ip(f); }},
    {"payload bit", FrameVerdict::kBadUdpChecksum, &IoCounters::rx_bad_udp_checksum,
     [](Bytes& f) { f.back() ^= std::byte{0x10}; }},
    {"nobody listens", FrameVerdict::kDatagram, &IoCounters::rx_port_closed,
     [](Bytes& f) { f[36] ^= std::byte{1}, f[40] = f[41] = std::byte{0}; }},
};

// ---- a started environment
// ------------------------------------------------------------------------

struct HostState {
  cpu_set_t affinity{};
  sigset_t mask{};
  std::vector<void (*)(int)> handlers;
  HostState() {
    pthread_getaffinity_np(pthread_self(), sizeof(affinity), &affinity);
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int s = 1; s < 32; ++s) {
      struct sigaction action {};
      sigaction(s, nullptr, &action);
      handlers.push_back(action.sa_handler);
    }
  }
  bool operator==(const HostState& o) const {
    return CPU_EQUAL(&affinity, &o.affinity) && handlers == o.handlers &&
           std::memcmp(&mask, &o.mask, sizeof(int) * 2) == 0;
  }
};

bool start_kept_the_host_as_it_was = false;

void start_eal() {
  static const HostState before;
  start_eal_once();
  static const bool once = [] { return start_kept_the_host_as_it_was = HostState() == before; }();
  (void)once;
}

PortOptions port_options(const std::string& device, std::uint32_t ipv4, std::uint16_t mtu = 1500) {
  PortOptions options;
  options.device = device;
  options.ipv4 = ipv4;
  options.mtu = mtu;
  return options;
}

constexpr std::uint16_t kListening = 0x1771;

// A port whose transmit ring is its receive ring: what is sent comes back.
struct Loopback {
  BufferPool payloads;
  BufferPool headers;
  Port port;
  DatagramIo io;
  Endpoint self;  // from and to ourselves

  explicit Loopback(bool chain = false, std::size_t buffers = 2500, std::size_t backlog_max = 64,
                    std::size_t header_room = 0)
      : payloads((start_eal(), "loop"), buffers, 1472),
        headers("loop-headers", 64, header_room),
        port(port_options("net_ring0", kUs.ipv4), payloads),
        io(payloads, headers, backlog_max) {
    PortView view = port.view(0);
    view.chain = chain;
    io.add_port(view);
    io.listen(kListening);
    self = endpoint({port.mac(), kUs.ipv4}, kListening, kListening);
    self.port_id = port.id();
    self.off_machine = true;
  }

  // The driver forgets what is in its ring when it closes.
  ~Loopback() {
    io.flush();
    receive_all();
  }

  // Without chains.
  void move_to_vlan(std::uint16_t vlan) {
    PortView view = port.view(0);
    view.chain = false;
    view.vlan = vlan;
    io.remove_port(view.id);
    io.add_port(view);
  }

  void inject(const Bytes& frame) {
    Buffer buffer = io.allocate(frame.size());
    REQUIRE(buffer);
    std::copy(frame.begin(), frame.end(), buffer.writable().begin());
    io.send_frame(port.id(), std::move(buffer));
    io.flush();
  }

  std::vector<Bytes> receive_all() {
    std::vector<Bytes> all;
    const auto keep = [&](const Endpoint&, Buffer payload) {
      all.push_back(copy_of(payload.bytes()));
    };
    while (io.receive(keep) > 0) {
    }
    return all;
  }

  bool pools_are_full() const {
    return payloads.available() == payloads.size() && headers.available() == headers.size();
  }
};

// A directory of its own for sockets.
struct TemporaryDirectory {
  std::string path = "/tmp/test_net.XXXXXX";
  TemporaryDirectory() { REQUIRE(mkdtemp(path.data())); }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
};

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
      : payloads((start_eal(), "pair"), 2048, 8972),
        headers("pair-headers", 512, 0),
        lane(payloads, headers) {
    lane.listen(kListening);
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
  bool poll_until(Condition condition) {
    for (const Time give_up = now() + 20s; now() < give_up; std::this_thread::yield()) {
      vhost->poll();
      if (condition()) return true;
    }
    return false;
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

}  // namespace

// ---- framing
// ----------------------------------------------------------------------------------------

TEST_CASE("Headers are written byte by byte as the standards say") {
  Bytes headers(kHeaderBytes);
  write_headers(std::span<std::byte, kHeaderBytes>(headers.data(), kHeaderBytes), kUs,
                endpoint(kThem, 0x1234, 0x5678), 87, 0);
  // The IPv4 header is a published example, checksum b861.
  CHECK(headers == bytes({0x02, 0,    0,    0,    0,    0x02, 0x02, 0,    0,    0,    0,
                          0x01, 0x08, 0x00, 0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00,
                          0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8, 0x00,
                          0xc7, 0x56, 0x78, 0x12, 0x34, 0x00, 0x5f, 0x00, 0x00}));
}

TEST_CASE("A UDP checksum agrees with an independent computation") {
  for (std::size_t size : {0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 1471, 1472, 8972}) {
    Bytes frame = frame_with(kThem, endpoint(kUs, 1, 2), pattern(size));
    CHECK(reference_udp_sum(frame) == 0xffff);
    CHECK((frame[40] != std::byte{0} || frame[41] != std::byte{0}));
    const ParsedFrame parsed = parse_frame(frame, kUs);
    CHECK(parsed.verdict == FrameVerdict::kDatagram);
    CHECK(parsed.payload_bytes == size);
  }
}

TEST_CASE("A UDP checksum that comes out as zero is sent as ffff") {
  // Two payload bytes that make the sum ffff and so its complement zero.
  Bytes frame = frame_with(kThem, endpoint(kUs, 1, 2), bytes({0, 0}), UdpChecksum::kNone);
  const unsigned rest = 0xffff - reference_udp_sum(frame);
  frame = frame_with(kThem, endpoint(kUs, 1, 2),
                     bytes({static_cast<int>(rest >> 8), static_cast<int>(rest & 0xff)}));
  CHECK(frame[40] == std::byte{0xff});
  CHECK(frame[41] == std::byte{0xff});
  CHECK(parse_frame(frame, kUs).verdict == FrameVerdict::kDatagram);
}

TEST_CASE("A good frame gives its sender and its payload, padded or not") {
  const Bytes payload = pattern(5);
  Bytes frame = frame_with(kThem, endpoint(kUs, 0x1771, 0x4242), payload);
  frame.resize(60);
  const ParsedFrame parsed = parse_frame(frame, kUs);
  REQUIRE(parsed.verdict == FrameVerdict::kDatagram);
  CHECK(parsed.from == endpoint(kThem, 0x4242, 0x1771));
  CHECK(parsed.payload_bytes == 5);
}

TEST_CASE("Every malformed frame is told apart") {
  for (const Fault& fault : kFaults) {
    INFO(fault.name);
    Bytes frame = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
    fault.spoil(frame);
    CHECK(parse_frame(frame, kUs).verdict == fault.verdict);
  }
}

TEST_CASE("No frame cut short is read beyond its end") {
  const Bytes whole = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(parse_frame(cut, kUs).verdict != FrameVerdict::kDatagram);
    CHECK_FALSE(parse_arp(cut));
  }
}

namespace {

/// An ICMP echo request of us to us, as ping(8) sends it, with so many bytes of data; padded.
Bytes echo_request(const LocalAddress& to, std::size_t data_bytes) {
  Bytes data(data_bytes);
  for (std::size_t i = 0; i < data_bytes; ++i) data[i] = static_cast<std::byte>(i);
  Bytes frame = frame_with(kThem, endpoint(to, 0, 0), data, UdpChecksum::kNone);
  frame[23] = std::byte{1};
  repair_ip(frame);
  const std::uint8_t head[] = {8, 0, 0, 0, 0x12, 0x34, 0, 7};  // id, number
  std::memcpy(&frame[34], head, sizeof head);
  const unsigned sum = ~reference_sum(std::span(frame).subspan(34));
  frame[36] = static_cast<std::byte>(sum >> 8);
  frame[37] = static_cast<std::byte>(sum);
  if (frame.size() < 60) frame.resize(60);
  return frame;
}

}  // namespace

TEST_CASE("A ping becomes its answer") {
  const std::size_t data_bytes = GENERATE(0u, 1u, 56u, 1472u);
  const Bytes request = echo_request(kUs, data_bytes);
  REQUIRE(parse_frame(request, kUs).verdict == FrameVerdict::kEcho);
  Bytes reply = request;
  REQUIRE(to_echo_reply(reply) == 42 + data_bytes);
  reply.resize(42 + data_bytes);
  Bytes expected(request.begin(), request.begin() + 42 + static_cast<std::ptrdiff_t>(data_bytes));
  std::memcpy(&expected[0], kThem.mac.data(), 6);
  std::memcpy(&expected[6], kUs.mac.data(), 6);
  std::swap_ranges(expected.begin() + 26, expected.begin() + 30, expected.begin() + 30);
  expected[34] = std::byte{0};
  const auto without_checksums = [](Bytes frame) {
    for (const std::size_t at : {24u, 25u, 36u, 37u}) frame[at] = std::byte{0};
    return frame;
  };
  CHECK(without_checksums(reply) == without_checksums(expected));
  CHECK(reference_sum(std::span(reply).subspan(14, 20)) == 0xffff);
  CHECK(reference_sum(std::span(reply).subspan(34)) == 0xffff);
  CHECK(parse_frame(reply, kThem).verdict == FrameVerdict::kOtherProtocol);  // answers none
}

TEST_CASE("A ping that is damaged, or cut short, is not answered") {
  const Bytes good = echo_request(kUs, 56);
  for (std::size_t at = 34; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= std::byte{0x10};
    CHECK(parse_frame(bad, kUs).verdict == FrameVerdict::kBadIcmp);
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    const auto verdict = parse_frame(cut, kUs).verdict;
    CHECK((verdict == FrameVerdict::kTooShort || verdict == FrameVerdict::kBadIcmp));
  }
  Bytes headless = good;  // whose IPv4 packet ends within the message's head
  headless[16] = std::byte{0};
  headless[17] = std::byte{27};
  repair_ip(headless);
  CHECK(parse_frame(headless, kUs).verdict == FrameVerdict::kBadIcmp);
}

namespace {

constexpr std::uint16_t kVlan = 7;

/// As it is on the wire, in a VLAN; `control` is all that the tag says.
Bytes tagged(const Bytes& frame, std::uint16_t control = kVlan) {
  Bytes out(kTagBytes);
  out.insert(out.end(), frame.begin(), frame.end());
  put_in_tag(out, control);
  return out;
}

}  // namespace

TEST_CASE("A VLAN's tag is put behind the addresses, and taken out again") {
  const Bytes frame = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  Bytes wire = tagged(frame);
  CHECK(Bytes(wire.begin(), wire.begin() + 12) == Bytes(frame.begin(), frame.begin() + 12));
  CHECK(Bytes(wire.begin() + 12, wire.begin() + 16) == bytes({0x81, 0x00, 0x00, 0x07}));
  CHECK(Bytes(wire.begin() + 16, wire.end()) == Bytes(frame.begin() + 12, frame.end()));
  CHECK(vlan_of(wire) == kVlan);
  take_out_tag(wire);
  CHECK(Bytes(wire.begin() + 4, wire.end()) == frame);
}

TEST_CASE("A tag names a VLAN, whatever its priority") {
  const Bytes frame = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  CHECK(vlan_of(tagged(frame, 0xf000 | kVlan)) == kVlan);
  CHECK(vlan_of(tagged(frame, 0xe000)) == kNoVlan);  // it is for its priority alone
  CHECK(vlan_of(tagged(frame, 4094)) == 4094);
  CHECK(vlan_of(frame) == std::nullopt);
  Bytes providers = tagged(frame);
  providers[12] = std::byte{0x88}, providers[13] = std::byte{0xa8};
  CHECK(vlan_of(providers) == std::nullopt);
  const Bytes wire = tagged(frame);
  for (std::size_t size = 0; size < kEthernetBytes + kTagBytes; ++size)
    CHECK(vlan_of(std::span(wire).first(size)) == std::nullopt);
}

TEST_CASE("A frame with a tag is of another VLAN, be it to us, to all or to a group") {
  const Arp request{ArpOperation::kRequest, kThem.mac, kThem.ipv4, {}, kUs.ipv4};
  Bytes to_group = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  to_group[0] = std::byte{0x01};
  for (const Bytes& frame : {frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64)),
                             copy_of(make_arp(request, kBroadcastMac)), to_group}) {
    Bytes wire = tagged(frame);
    CHECK(parse_frame(wire, kUs).verdict == FrameVerdict::kOtherVlan);
    wire[12] = std::byte{0x88}, wire[13] = std::byte{0xa8};
    CHECK(parse_frame(wire, kUs).verdict == FrameVerdict::kOtherVlan);
  }
}

TEST_CASE("ARP is written and read byte by byte as the standard says") {
  const Arp reply{ArpOperation::kReply, kUs.mac, kUs.ipv4, kThem.mac, kThem.ipv4};
  const auto frame = make_arp(reply, kThem.mac);
  CHECK(copy_of(frame) == bytes({0x02, 0,    0,    0,    0,    0x02, 0x02, 0,    0,    0,    0,
                                 0x01, 0x08, 0x06, 0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x02,
                                 0x02, 0,    0,    0,    0,    0x01, 0xc0, 0xa8, 0x00, 0x01, 0x02,
                                 0,    0,    0,    0,    0x02, 0xc0, 0xa8, 0x00, 0xc7}));
  CHECK(parse_arp(frame) == reply);
  for (std::size_t at : {14u, 16u, 18u, 19u, 20u}) {  // types, lengths and operation
    auto wrong = frame;
    wrong[at] ^= std::byte{0x40};
    CHECK_FALSE(parse_arp(wrong));
  }
}

// ---- the environment, pools and buffers
// -----------------------------------------------------------

TEST_CASE("DPDK starts without a trace on the calling thread, once") {
  start_eal();
  CHECK(start_kept_the_host_as_it_was);
  CHECK(memory_available() > 0);
  CHECK_THROWS_WITH(Eal({}), Contains("once per process"));
  EalOptions options;
  options.memory_mib = 3;
  CHECK_THROWS_WITH(Eal(options), Contains("3 MiB: 16 to 1048576 expected"));
}

TEST_CASE("A host's signal handlers stay its own while a port opens or closes") {
  const auto current = [] {
    struct sigaction action {};
    sigaction(SIGUSR1, nullptr, &action);
    return action.sa_handler;
  };
  void (*const host_installs)(int) = [](int) {};
  {
    const CallerState while_dpdk_works;
    std::signal(SIGUSR1, host_installs);  // another thread of the host
  }
  CHECK(current() == host_installs);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST_CASE("A pool lends its buffers and gets them back") {
  start_eal();
  BufferPool pool("small", 3, 100);
  std::vector<Buffer> lent;
  for (int i = 0; i < 3; ++i) lent.push_back(pool.allocate(100));
  CHECK(lent.back().bytes().size() == 100);
  CHECK(pool.available() == 0);
  CHECK_FALSE(pool.allocate(1));
  lent.pop_back();
  CHECK_FALSE(pool.allocate(101));
  CHECK(pool.allocate(100));
  lent.clear();
  CHECK(pool.available() == pool.size());
}

TEST_CASE("A buffer takes what the memory rules count for it") {
  start_eal();
  const auto bytes_of_pool = [](std::size_t count, std::size_t payload_bytes) {
    const std::size_t before = memory_available();
    const BufferPool pool("measured", count, payload_bytes);
    return before - memory_available();
  };
  for (const std::size_t mtu : {576, 1500, 9000}) {
    // The difference: a pool of any size also takes about 1 MiB for the threads' caches.
    const std::size_t taken =
        (bytes_of_pool(4000, mtu - 28) - bytes_of_pool(2000, mtu - 28)) / 2000;
    CHECK(taken <= packet_buffer_bytes(mtu));
    CHECK(taken >= packet_buffer_bytes(mtu) * 9 / 10);
  }
}

TEST_CASE("A pool that does not fit says what it needs and what there is") {
  start_eal();
  try {
    BufferPool pool("huge", 1 << 20, 8972);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    CHECK_THAT(error.what(), Contains("need about 9") && Contains("MiB of packet memory are free"));
  }
  const BufferPool pool("twin", 8, 100);
  CHECK_THROWS_WITH(BufferPool("twin", 8, 100), Contains("exists already"));
  CHECK_THROWS_WITH(BufferPool("none", 0, 100), Contains("0 buffers"));
  CHECK_THROWS_WITH(BufferPool(std::string(30, 'x'), 8, 100), Contains("25 characters"));
  CHECK_THROWS_WITH(BufferPool("long", 8, 70000), Contains("70000"));
}

TEST_CASE("References to a buffer are counted") {
  start_eal();
  BufferPool pool("counted", 4, 100);
  Buffer a = pool.allocate(10);
  std::fill(a.writable().begin(), a.writable().end(), std::byte{7});
  Buffer b = a.share();
  CHECK(a.references() == 2);
  CHECK(b.bytes().data() == a.bytes().data());
  CHECK(b.bytes().size() == 10);
  Buffer c = std::move(a);
  CHECK_FALSE(a);
  CHECK(a.bytes().empty());
  CHECK(c.references() == 2);
  c = {};
  CHECK(b.references() == 1);
  CHECK(pool.available() == 3);
  b = {};
  CHECK(pool.available() == 4);
}

// ---- DatagramIo
// -------------------------------------------------------------------------------------

TEST_CASE("A datagram arrives with its bytes and its sender") {
  Loopback loop;
  for (std::size_t size : {0, 1, 18, 1472}) {
    Buffer payload = loop.io.allocate(size);
    const Bytes sent = pattern(size);
    std::copy(sent.begin(), sent.end(), payload.writable().begin());
    loop.io.send(loop.self, std::move(payload));
    loop.io.flush();
    std::size_t received = 0;
    CHECK(loop.io.receive([&](const Endpoint& from, Buffer arrived) {
      ++received;
      CHECK(from == loop.self);
      CHECK(copy_of(arrived.bytes()) == sent);
    }) == 1);
    CHECK(received == 1);
  }
  CHECK(loop.io.counters().rx_datagrams == 4);
  CHECK(loop.io.counters().rx_bytes == 1491);
  CHECK(loop.io.counters().tx_bytes == 1491);
  CHECK(loop.pools_are_full());
}

TEST_CASE("Every malformed frame moves its counter and goes back to its pool") {
  Loopback loop;
  const LocalAddress us{loop.port.mac(), kUs.ipv4};
  for (const Fault& fault : kFaults) {
    INFO(fault.name);
    Bytes frame = frame_with(kThem, endpoint(us, kListening, 7), pattern(64));
    fault.spoil(frame);
    const std::uint64_t before = loop.io.counters().*fault.counter;
    loop.inject(frame);
    CHECK(loop.receive_all().empty());
    CHECK(loop.io.counters().*fault.counter == before + 1);
  }
  CHECK(loop.io.counters().rx_frames == std::size(kFaults));
  CHECK(loop.pools_are_full());
}

TEST_CASE("A shared payload is copied for a port that takes no chains") {
  Loopback loop(false);
  Buffer payload = loop.io.allocate(1472);
  const Bytes sent = pattern(1472, 3);
  std::copy(sent.begin(), sent.end(), payload.writable().begin());
  for (int peer = 0; peer < 5; ++peer) loop.io.send(loop.self, payload.share());
  loop.io.flush();
  CHECK(payload.references() == 1);
  CHECK(loop.receive_all() == std::vector<Bytes>(5, sent));
  CHECK(loop.io.counters().tx_linearised == 5);
  CHECK(loop.io.counters().tx_chained == 0);
  payload = {};
  CHECK(loop.pools_are_full());
}

TEST_CASE("A chained frame that comes in is refused whole, and every reference comes back") {
  Loopback loop(true);
  Buffer payload = loop.io.allocate(100);
  for (int peer = 0; peer < 5; ++peer) loop.io.send(loop.self, payload.share());
  loop.io.flush();
  CHECK(payload.references() == 6);
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().tx_chained == 5);
  CHECK(loop.io.counters().rx_multi_segment == 5);
  CHECK(payload.references() == 1);
  payload = {};
  CHECK(loop.pools_are_full());
}

TEST_CASE("A frame that a device spread over buffers is put together where the first has room") {
  Loopback loop(true, 2500, 64, 1472);
  Buffer payload = loop.io.allocate(100);
  const Bytes sent = pattern(100, 3);
  std::copy(sent.begin(), sent.end(), payload.writable().begin());
  for (int peer = 0; peer < 5; ++peer) loop.io.send(loop.self, payload.share());
  loop.io.flush();
  CHECK(loop.io.counters().tx_chained == 5);
  CHECK(loop.receive_all() == std::vector<Bytes>(5, sent));
  CHECK(loop.io.counters().rx_multi_segment == 0);
  CHECK(payload.references() == 1);
  payload = {};
  CHECK(loop.pools_are_full());
}

TEST_CASE("A full ring keeps order, sends nothing twice and drops what exceeds the backlog") {
  Loopback loop;
  constexpr std::uint32_t kOffered = 2000;
  for (std::uint32_t i = 0; i < kOffered; ++i) {
    Buffer payload = loop.io.allocate(sizeof(i));
    REQUIRE(payload);
    std::memcpy(payload.writable().data(), &i, sizeof(i));
    loop.io.send(loop.self, std::move(payload));
  }
  loop.io.flush();
  const IoCounters& counters = loop.io.counters();
  const std::uint64_t in_ring = counters.tx_frames;
  CHECK(in_ring < kOffered);
  CHECK(counters.tx_partial_bursts > 0);
  CHECK(loop.io.backlog(loop.port.id()) == 64);
  CHECK(loop.io.left_backlog());
  CHECK(counters.tx_backlog_full == kOffered - in_ring - 64);

  // The ring drains a little at a time while the backlog moves up.
  std::vector<std::uint32_t> order;
  const auto keep = [&](const Endpoint&, Buffer payload) {
    std::memcpy(&order.emplace_back(), payload.bytes().data(), sizeof(std::uint32_t));
  };
  while (loop.io.receive(keep) > 0) loop.io.flush();
  std::vector<std::uint32_t> expected(in_ring + 64);
  std::iota(expected.begin(), expected.end(), 0u);
  CHECK(order == expected);
  CHECK(loop.io.backlog(loop.port.id()) == 0);
  CHECK_FALSE(loop.io.left_backlog());
  CHECK(loop.pools_are_full());
}

TEST_CASE("Nobody is answered before there is room for all the answers") {
  start_eal();
  constexpr std::size_t kAsked = 200;
  constexpr std::size_t kAnswers = 16;  // to each
  BufferPool payloads("asked", 2047, 1472);
  BufferPool headers("asked-headers", 63, 0);
  MemoryLink link({.name = "asked", .frames = 256, .mtu = 1500}, payloads);
  DatagramIo io(payloads, headers, 64, kAnswers);
  io.listen(kListening);
  io.add_port(link.port());
  for (std::size_t i = 0; i < kAsked; ++i)
    link.send(link.far_end(kListening, kListening), link.allocate(i + 1));
  link.flush();
  std::size_t next = 0;
  const auto answer = [&](const Endpoint& from, Buffer question) {
    CHECK(question.bytes().size() == ++next);
    for (std::size_t i = 0; i < kAnswers; ++i) io.send(from, io.allocate(next));
  };
  // The port takes as many as its ring holds, then nothing.
  while (io.receive(answer) > 0) io.flush();
  CHECK(next < kAsked);
  CHECK(io.held_back());
  CHECK(io.counters().tx_backlog_full == 0);

  std::size_t answers = 0;
  const auto count = [&](const Endpoint&, Buffer payload) {
    CHECK(payload.bytes().size() == answers++ / kAnswers + 1);
  };
  for (const Time give_up = now() + 20s; answers < kAsked * kAnswers && now() < give_up;) {
    link.receive(count);
    io.receive(answer);
    io.flush();
  }
  CHECK(answers == kAsked * kAnswers);
  io.receive(answer);
  CHECK_FALSE(io.held_back());
  CHECK(io.counters().tx_backlog_full == 0);
  CHECK(payloads.available() == payloads.size());
}

TEST_CASE("A local peer is not answered to the network before there is room") {
  start_eal();
  constexpr std::size_t kAsked = 200;
  constexpr std::size_t kAnswers = 16;  // to each
  BufferPool payloads("routed", 2047, 1472);
  BufferPool headers("routed-headers", 63, 0);
  MemoryLink local({.name = "local", .frames = 256, .mtu = 1500}, payloads);
  MemoryLink network({.name = "network", .frames = 64, .mtu = 1500}, payloads);
  DatagramIo io(payloads, headers, 64, kAnswers);
  io.listen(kListening);
  io.add_port(local.port());
  PortView away = network.port();
  away.off_machine = true;
  io.add_port(away);
  for (std::size_t i = 0; i < kAsked; ++i)
    local.send(local.far_end(kListening, kListening), local.allocate(1));
  local.flush();
  const Endpoint peer = network.far_end(kListening, kListening);
  std::size_t taken = 0;
  const auto answer = [&](const Endpoint&, const Buffer&) {
    ++taken;
    for (std::size_t i = 0; i < kAnswers; ++i) io.send(peer, io.allocate(1));
  };
  std::size_t answers = 0;
  const auto count = [&](const Endpoint&, const Buffer&) { ++answers; };
  for (const Time give_up = now() + 20s; answers < kAsked * kAnswers && now() < give_up;) {
    io.receive(answer);
    io.flush();
    network.receive(count);
  }
  CHECK(answers == kAsked * kAnswers);
  CHECK(io.counters().tx_backlog_full == 0);

  // Where the network takes nothing at all, local peers are served, and what is for it is dropped.
  for (std::size_t i = 0; i < kAsked; ++i)
    local.send(local.far_end(kListening, kListening), local.allocate(1));
  local.flush();
  for (const Time give_up = now() + 20s; taken < 2 * kAsked && now() < give_up;) {
    io.receive(answer);
    io.flush();
  }
  CHECK(taken == 2 * kAsked);
  CHECK(io.counters().tx_backlog_full > 0);
  while (io.has_backlog()) {
    io.flush();
    network.receive(count);
  }
  while (network.receive(count) > 0) {
  }
}

namespace {

/// Two lanes of which the first gets all that comes, and the second is to have it.
struct Lanes {
  static constexpr std::uint16_t kSecond = kListening + 1;  // UDP port
  BufferPool payloads;
  BufferPool headers;
  MemoryLink link;
  HandOver others;
  DatagramIo first, second;

  explicit Lanes(std::size_t fan_out = 0, bool off_machine = true)
      : payloads((start_eal(), "lanes"), 8191, 1472),
        headers("lanes-headers", 63, 0),
        link({.name = "lanes", .frames = 2048, .mtu = 1500}, payloads),
        others(2),
        first(payloads, headers),
        second(payloads, headers, 64, fan_out) {
    first.listen(kListening);
    second.listen(kSecond);
    others.listens(0, kListening);
    others.listens(1, kSecond);
    first.join(others, 0);
    second.join(others, 1);
    PortView port = link.port();
    port.off_machine = off_machine;
    first.add_port(port);
    second.add_port(port);
  }

  void send(std::size_t datagrams, std::uint16_t to) {
    for (std::size_t i = 0; i < datagrams; ++i)
      link.send(link.far_end(to, kListening), link.allocate(i % 1000 + 1));
    link.flush();
  }
  void first_receives() {
    while (first.receive([](const Endpoint&, const Buffer&) { FAIL("not its own"); }) > 0) {
    }
  }
};

}  // namespace

TEST_CASE("What comes to another lane is handed over, in order") {
  Lanes lanes;
  constexpr std::size_t kSent = 100;
  lanes.send(kSent, Lanes::kSecond);
  lanes.first_receives();
  CHECK(lanes.first.counters().rx_handed_over == kSent);
  std::size_t taken = 0;
  const auto answer = [&](const Endpoint& from, Buffer payload) {
    CHECK(payload.bytes().size() == ++taken);
    CHECK(from.local_udp_port == Lanes::kSecond);
    lanes.second.send(from, std::move(payload));
  };
  while (lanes.second.receive(answer) > 0) lanes.second.flush();
  CHECK(taken == kSent);
  CHECK(lanes.second.counters().rx_datagrams == kSent);
  std::size_t answers = 0;
  while (lanes.link.receive([&](const Endpoint&, Buffer) { ++answers; }) > 0) {
  }
  CHECK(answers == kSent);
  CHECK(lanes.payloads.available() == lanes.payloads.size());
}

TEST_CASE("A lane that takes nothing is handed no more than its ring holds") {
  Lanes lanes;
  constexpr std::size_t kSent = 1500;
  lanes.send(kSent, Lanes::kSecond);
  lanes.first_receives();
  const auto& counters = lanes.first.counters();
  CHECK(counters.rx_handed_over == limits::kHandOverFrames - 1);
  CHECK(counters.rx_hand_over_full == kSent - counters.rx_handed_over);
  lanes.second.remove_port(lanes.link.port().id);
  for (unsigned i = 0; i < limits::kHandOverFrames / limits::kBurst; ++i)
    lanes.second.receive([](const Endpoint&, const Buffer&) { FAIL("its port is gone"); });
  CHECK(lanes.payloads.available() == lanes.payloads.size());
}

TEST_CASE("A lane takes what it is handed when there is room for the answers") {
  constexpr std::size_t kSent = 200;
  constexpr std::size_t kAnswers = 32;
  Lanes lanes(kAnswers);
  lanes.send(kSent, Lanes::kSecond);
  lanes.first_receives();
  std::size_t taken = 0, answers = 0;
  const auto answer = [&](const Endpoint& from, const Buffer& payload) {
    CHECK(payload.bytes().size() == ++taken);
    for (std::size_t i = 0; i < kAnswers; ++i) lanes.second.send(from, lanes.second.allocate(1));
  };
  while (lanes.second.receive(answer) > 0 && taken < kSent / 2) {
  }
  CHECK(taken < kSent / 2);  // nothing has left
  for (const Time give_up = now() + 20s; answers < kSent * kAnswers && now() < give_up;) {
    lanes.second.flush();
    lanes.link.receive([&](const Endpoint&, Buffer) { ++answers; });
    lanes.second.receive(answer);
  }
  CHECK(answers == kSent * kAnswers);
  CHECK(lanes.second.counters().tx_backlog_full == 0);
}

TEST_CASE("A port that takes nothing holds up no other's datagrams that were handed over") {
  constexpr std::size_t kAnswers = 32;
  Lanes lanes(kAnswers);
  MemoryLink stuck({.name = "stuck", .frames = 64, .mtu = 1500}, lanes.payloads);
  PortView port = stuck.port();
  port.off_machine = true;
  lanes.first.add_port(port);
  lanes.second.add_port(port);
  std::size_t taken = 0;
  const auto answer = [&](const Endpoint& from, const Buffer&) {
    taken += from.port_id == lanes.link.port().id;
    for (std::size_t i = 0; i < kAnswers; ++i) lanes.second.send(from, lanes.second.allocate(1));
  };
  // Nobody reads what goes back there.
  for (const Time give_up = now() + 20s;
       lanes.second.counters().rx_hand_over_full == 0 && now() < give_up;) {
    stuck.send(stuck.far_end(Lanes::kSecond, kListening), stuck.allocate(1));
    stuck.flush();
    lanes.first.receive([](const Endpoint&, const Buffer&) {});
    lanes.second.receive(answer);
    lanes.second.flush();
  }
  CHECK(lanes.second.counters().rx_hand_over_full > 0);
  constexpr std::size_t kSent = 10;
  lanes.send(kSent, Lanes::kSecond);
  for (const Time give_up = now() + 20s; taken < kSent && now() < give_up;) {
    lanes.first.receive([](const Endpoint&, const Buffer&) {});
    lanes.second.receive(answer);
    lanes.second.flush();
    lanes.link.receive([](const Endpoint&, Buffer) {});
  }
  CHECK(taken == kSent);
}

TEST_CASE("What is handed over keeps no lane from what comes to itself") {
  Lanes lanes;
  lanes.send(limits::kBurst * 4, Lanes::kSecond);
  lanes.first_receives();
  lanes.send(1, kListening + 2);  // closed, so it is counted when it is fetched
  lanes.second.receive([&](const Endpoint&, const Buffer&) {});
  CHECK(lanes.second.counters().rx_port_closed == 1);
  CHECK(lanes.second.counters().rx_datagrams == limits::kBurst);
}

TEST_CASE("Local peers' frames are handed to nobody: they have a queue for each lane") {
  Lanes lanes(0, false);
  lanes.send(3, Lanes::kSecond);
  lanes.first_receives();
  CHECK(lanes.first.counters().rx_port_closed == 3);
  CHECK(lanes.first.counters().rx_handed_over == 0);
}

TEST_CASE("A UDP port of no lane is closed") {
  Lanes lanes;
  lanes.send(3, kListening + 2);
  lanes.first_receives();
  CHECK(lanes.first.counters().rx_port_closed == 3);
  CHECK(lanes.first.counters().rx_handed_over == 0);
}

TEST_CASE("A daemon's lanes are told to its workers") {
  const TemporaryDirectory directory;
  CHECK(lanes_at(directory.path) == 1);
  CHECK(lanes_at(directory.path + "/none") == 1);
  tell_lanes(directory.path, 8);
  CHECK(lanes_at(directory.path) == 8);
  tell_lanes(directory.path, 2);
  CHECK(lanes_at(directory.path) == 2);
  for (const char* const garbage : {"", "x", "-3", "99999999999999999999"}) {
    std::ofstream(directory.path + "/lanes") << garbage;
    CHECK(lanes_at(directory.path) >= 1);
    CHECK(lanes_at(directory.path) <= limits::kMaxLanes);
  }
  CHECK_THROWS_WITH(tell_lanes(directory.path + "/none", 2),
                    Contains("/none/lanes' cannot be written"));
}

TEST_CASE("What is queued at the end still leaves, within a bound") {
  start_eal();
  constexpr std::size_t kQueued = 300;  // many more than the ring holds
  BufferPool payloads("last", 511, 1472);
  BufferPool headers("last-headers", 63, 0);
  MemoryLink link({.name = "last", .frames = 64, .mtu = 1500}, payloads);
  DatagramIo io(payloads, headers);
  io.add_port(link.port());
  Endpoint peer = link.far_end(kListening, kListening);
  for (std::size_t i = 0; i < kQueued; ++i) io.send(peer, io.allocate(1));
  CHECK_FALSE(io.drain(1ms));  // nobody takes them
  CHECK(io.has_backlog());
  auto drained = std::async(std::launch::async, [&] { return io.drain(20s); });
  std::size_t came = 0;
  for (const Time give_up = now() + 20s; came < kQueued && now() < give_up;)
    link.receive([&](const Endpoint&, const Buffer&) { ++came; });
  CHECK(drained.get());
  CHECK(came == kQueued);
}

TEST_CASE("What cannot be sent is dropped by reason") {
  Loopback loop(true, 4);
  const IoCounters& counters = loop.io.counters();
  SECTION("no such port") {
    Endpoint nowhere = loop.self;
    nowhere.port_id = 31;
    loop.io.send(nowhere, loop.io.allocate(1));
    loop.io.send_frame(31, loop.io.allocate(1));
    CHECK(counters.tx_unknown_port == 2);
  }
  SECTION("beyond the MTU") {
    PortView narrow = loop.port.view(0);
    narrow.mtu = 576;
    loop.io.remove_port(loop.port.id());
    loop.io.add_port(narrow);
    loop.io.send(loop.self, loop.io.allocate(549));
    CHECK(counters.tx_too_long == 1);
    loop.io.send(loop.self, loop.io.allocate(548));
    CHECK(counters.tx_datagrams == 1);
  }
  SECTION("no buffers") {
    std::vector<Buffer> all;
    for (int i = 0; i < 4; ++i) all.push_back(loop.io.allocate(10));
    CHECK_FALSE(loop.io.allocate(10));
    CHECK(counters.pool_empty == 1);
    std::vector<Buffer> headers;
    while (Buffer header = loop.headers.allocate(0)) headers.push_back(std::move(header));
    loop.io.send(loop.self, all[0].share());
    CHECK(counters.pool_empty == 2);
    CHECK(all[0].references() == 1);
    CHECK_FALSE(loop.io.resolve(loop.port.id(), kThem.ipv4, now()));
    CHECK(counters.pool_empty == 3);
  }
  SECTION("the port goes") {
    loop.io.send(loop.self, loop.io.allocate(10));
    loop.io.remove_port(loop.port.id());
    CHECK(counters.tx_port_removed == 1);
    loop.io.send(loop.self, loop.io.allocate(10));
    CHECK(counters.tx_unknown_port == 1);
    CHECK(loop.io.receive([](const Endpoint&, Buffer) {}) == 0);
    loop.io.add_port(loop.port.view(0));
  }
  loop.io.flush();
  loop.receive_all();
  CHECK(loop.pools_are_full());
}

TEST_CASE("While a link is down, what was queued and what is sent is dropped") {
  Loopback loop;
  const IoCounters& counters = loop.io.counters();
  const std::uint16_t port = loop.port.id();
  const auto send = [&] { loop.io.send(loop.self, loop.io.allocate(10)); };
  for (int i = 0; i < 3; ++i) send();
  loop.io.set_link(port, false);
  CHECK(counters.tx_link_down == 3);
  CHECK(loop.io.backlog(port) == 0);
  send();
  loop.io.flush();
  CHECK(counters.tx_link_down == 4);
  CHECK(counters.tx_frames == 0);
  CHECK(loop.pools_are_full());
  loop.io.set_link(port, true);
  send();
  loop.io.flush();
  CHECK(loop.receive_all().size() == 1);
  CHECK(counters.tx_link_down == 4);
  loop.io.set_link(31, false);  // no such port
}

TEST_CASE("A copy needs a buffer too") {
  Loopback loop(false, 1);
  Buffer only = loop.io.allocate(10);
  loop.io.send(loop.self, only.share());
  CHECK(loop.io.counters().pool_empty == 1);
  CHECK(only.references() == 1);
}

TEST_CASE("ARP requests for our address are answered, others are not") {
  Loopback loop;
  const Arp request{ArpOperation::kRequest, kThem.mac, kThem.ipv4, {}, kUs.ipv4};
  loop.inject(copy_of(make_arp(request, kBroadcastMac)));
  loop.receive_all();
  CHECK(loop.io.counters().arp_replies_sent == 1);
  loop.io.flush();
  loop.receive_all();  // the reply comes back to its sender, who is not its addressee
  CHECK(loop.io.counters().rx_other_mac == 1);

  Arp other = request;
  other.target_ipv4 = 0x0101'0101;
  loop.inject(copy_of(make_arp(other, kBroadcastMac)));
  Bytes garbage = copy_of(make_arp(request, kBroadcastMac));
  garbage[15] = std::byte{9};
  loop.inject(garbage);
  loop.receive_all();
  CHECK(loop.io.counters().arp_replies_sent == 1);
  CHECK(loop.io.counters().arp_ignored == 2);
  CHECK(loop.pools_are_full());
}

TEST_CASE("Pings of our address are answered in their own buffers") {
  Loopback loop;
  const LocalAddress us{loop.port.mac(), kUs.ipv4};
  loop.inject(echo_request(us, 56));
  CHECK(loop.receive_all().empty());  // the answer is for them
  CHECK(loop.io.counters().echoes_answered == 1);
  CHECK(loop.io.counters().rx_other_mac == 0);
  loop.io.flush();
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_other_mac == 1);
  Bytes damaged = echo_request(us, 56);
  damaged.back() ^= std::byte{1};
  loop.inject(damaged);
  loop.receive_all();
  CHECK(loop.io.counters().rx_bad_icmp == 1);
  CHECK(loop.io.counters().echoes_answered == 1);
  CHECK(loop.pools_are_full());
}

namespace {

Bytes frame_for(const Loopback& loop) {
  return frame_with(kThem, endpoint({loop.port.mac(), kUs.ipv4}, kListening, 7), pattern(64));
}

Bytes first(std::size_t count, const Bytes& of) {
  return copy_of(std::span(of).first(count));
}

}  // namespace

TEST_CASE("A port of a VLAN tags what it sends, and takes what has its tag") {
  Loopback loop;
  loop.move_to_vlan(kVlan);
  const auto send = [&](Buffer payload) {
    loop.io.send(loop.self, std::move(payload));
    loop.io.flush();
  };
  for (const std::size_t size : {0u, 1u, 18u, 1472u}) {
    Buffer payload = loop.io.allocate(size);
    std::ranges::copy(pattern(size), payload.writable().begin());
    send(payload.share());  // copied behind a header
    send(std::move(payload));
    CHECK(loop.receive_all() == std::vector<Bytes>(2, pattern(size)));
  }
  for (const std::uint16_t other : {std::uint16_t{8}, kNoVlan}) {
    const std::uint64_t before = loop.io.counters().rx_other_vlan;
    loop.move_to_vlan(kVlan);
    send(loop.io.allocate(10));
    loop.move_to_vlan(other);
    CHECK(loop.receive_all().empty());
    CHECK(loop.io.counters().rx_other_vlan == before + 1);
  }
  CHECK(loop.pools_are_full());
}

TEST_CASE("A port of a VLAN drops what has no tag, another one, or two, and counts it") {
  Loopback loop;
  loop.move_to_vlan(kVlan);
  const Bytes frame = frame_for(loop);
  loop.inject(tagged(frame, 0xb000 | kVlan));
  CHECK(loop.receive_all() == std::vector<Bytes>{pattern(64)});
  const std::vector<Bytes> others{frame, tagged(frame, 8), tagged(frame, 0), tagged(tagged(frame)),
                                  first(17, tagged(frame))};
  for (const Bytes& other : others) loop.inject(other);
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_other_vlan == others.size());
  loop.inject(first(18, tagged(frame)));
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_too_short == 1);
  CHECK(loop.pools_are_full());
}

TEST_CASE("A port without a VLAN drops what has a tag, and counts it") {
  Loopback loop;
  for (const std::uint16_t control : std::array<std::uint16_t, 3>{0, kVlan, 0xe000})
    loop.inject(tagged(frame_for(loop), control));
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_other_vlan == 3);
}

TEST_CASE("In a VLAN, ARP, pings and IGMP have its tag, too") {
  Loopback loop;
  loop.move_to_vlan(kVlan);
  const IoCounters& counters = loop.io.counters();
  const Arp request{ArpOperation::kRequest, kThem.mac, kThem.ipv4, {}, kUs.ipv4};
  loop.inject(tagged(copy_of(make_arp(request, kBroadcastMac))));
  loop.inject(tagged(echo_request({loop.port.mac(), kUs.ipv4}, 56)));
  loop.receive_all();
  CHECK(counters.arp_replies_sent == 1);
  CHECK(counters.echoes_answered == 1);
  loop.io.flush();
  loop.receive_all();
  CHECK(counters.rx_other_mac == 2);  // both answers, which are for them
  constexpr std::array<std::uint32_t, 1> kGroup{0xefc0'0001};
  loop.io.set_groups(kGroup, Time{1s});
  loop.io.flush();
  loop.receive_all();
  CHECK(counters.igmp_reports_sent == 1);
  CHECK(counters.rx_other_mac == 3);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), kThem.ipv4, Time{1s}));
  loop.io.flush();
  loop.receive_all();
  CHECK(counters.arp_ignored == 1);  // our own question
  CHECK(counters.rx_other_vlan == 0);
  CHECK(loop.pools_are_full());
}

TEST_CASE("An address is asked for at a bounded rate until it is known") {
  Loopback loop;
  const std::uint16_t port = loop.port.id();
  const IoCounters& counters = loop.io.counters();
  const Time start{1s};
  CHECK_FALSE(loop.io.resolve(port, kThem.ipv4, start));
  CHECK_FALSE(loop.io.resolve(port, kThem.ipv4, start + 99ms));
  CHECK(counters.arp_requests_sent == 1);
  CHECK_FALSE(loop.io.resolve(port, kThem.ipv4, start + 100ms));
  CHECK(counters.arp_requests_sent == 2);

  const auto say = [&](const MacAddress& mac, std::uint32_t ipv4) {
    const Arp reply{ArpOperation::kReply, mac, ipv4, loop.port.mac(), kUs.ipv4};
    loop.inject(copy_of(make_arp(reply, loop.port.mac())));
    loop.receive_all();
  };
  say(kThem.mac, 0x0505'0505);  // nobody asked
  CHECK(counters.arp_learned == 0);
  say(kThem.mac, kThem.ipv4);
  CHECK(counters.arp_learned == 1);
  CHECK(loop.io.resolve(port, kThem.ipv4, start) == kThem.mac);
  say(kUs.mac, kThem.ipv4);  // it moved
  CHECK(loop.io.resolve(port, kThem.ipv4, start) == kUs.mac);

  // It may have moved without a word; the old address serves until the new one is known.
  CHECK(loop.io.resolve_again(port, kThem.ipv4, start + 1s) == kUs.mac);
  CHECK(loop.io.resolve_again(port, kThem.ipv4, start + 1s + 99ms) == kUs.mac);
  CHECK(counters.arp_requests_sent == 3);
  say(kThem.mac, kThem.ipv4);
  CHECK(loop.io.resolve_again(port, kThem.ipv4, start + 1s + 99ms) == kThem.mac);
  CHECK_FALSE(loop.io.resolve_again(port, 0x0505'0505, start + 2s));
  CHECK(counters.arp_requests_sent == 4);
  CHECK_FALSE(loop.io.resolve(31, kThem.ipv4, start));
}

TEST_CASE("Where several claim an address, each of the last few has its turn") {
  Loopback loop;
  const std::uint16_t port = loop.port.id();
  Time now{1s};
  loop.io.resolve(port, kThem.ipv4, now);
  const auto host = [](std::uint8_t number) { return MacAddress{2, 0, 0, 0, 0, number}; };
  const auto claim = [&](std::uint8_t number) {
    const Arp claim{ArpOperation::kRequest, host(number), kThem.ipv4, {}, kThem.ipv4};
    loop.inject(copy_of(make_arp(claim, kBroadcastMac)));
    loop.receive_all();
  };
  const auto at = [&](std::size_t turn) {
    return loop.io.resolve_again(port, kThem.ipv4, now, turn);
  };
  CHECK(loop.io.claimants(port, kThem.ipv4).empty());
  CHECK_FALSE(at(1));
  claim(1);
  CHECK(at(1) == host(1));
  claim(2);
  claim(2);
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(2), host(1)});
  CHECK(loop.io.resolve(port, kThem.ipv4, now) == host(2));
  for (std::size_t turn = 0; turn < 4; ++turn) CHECK(at(turn) == host(turn % 2 == 0 ? 2 : 1));
  claim(1);
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(1), host(2)});
  for (std::uint8_t number = 3; number < 100; ++number) claim(number);
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(99), host(98), host(97), host(96)});
  for (int i = 0; i < 20; ++i) {  // only one of them goes on
    now += 1s;
    at(0);
    claim(97);
  }
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(97)});
  CHECK(loop.io.claimants(31, kThem.ipv4).empty());
  loop.io.flush();
  loop.receive_all();
  CHECK(loop.pools_are_full());
}

TEST_CASE("Addresses beyond the network are reached through the gateway") {
  Loopback loop;
  PortView view = loop.port.view(0);
  view.gateway = kThem.ipv4;
  view.prefix = 24;
  loop.io.remove_port(loop.port.id());
  loop.io.add_port(view);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), 0x0808'0808, Time{1s}));
  const Arp reply{ArpOperation::kReply, kThem.mac, kThem.ipv4, loop.port.mac(), kUs.ipv4};
  loop.inject(copy_of(make_arp(reply, loop.port.mac())));
  loop.receive_all();
  CHECK(loop.io.resolve(loop.port.id(), 0x0808'0808, Time{1s}) == kThem.mac);
  CHECK(loop.io.resolve(loop.port.id(), 0x0909'0909, Time{1s}) == kThem.mac);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), kUs.ipv4 + 1, Time{1s}));
}

TEST_CASE("The table of neighbours is bounded") {
  Loopback loop;
  for (std::uint32_t i = 0; i < 256; ++i) loop.io.resolve(loop.port.id(), i + 1, Time{1s});
  CHECK(loop.io.counters().arp_table_full == 0);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), 257, Time{1s}));
  CHECK(loop.io.counters().arp_table_full == 1);
}

// ---- faults put in on purpose
// -----------------------------------------------------------------------

namespace {

// Sends numbered datagrams through a port that has faults, and gives what came of them.
struct FaultyLoopback : Loopback {
  static constexpr std::uint32_t kSent = 1000;

  explicit FaultyLoopback(const char* faults) {
    io.remove_port(port.id());
    io.inject_faults(parse_faults(faults));
    PortView view = port.view(0);
    view.udp_checksum = UdpChecksum::kSoftware;
    io.add_port(view);
  }

  static Bytes datagram(std::uint32_t number) {
    Bytes all = pattern(sizeof number + number % 300, number);
    std::memcpy(all.data(), &number, sizeof number);
    return all;
  }

  void send(std::uint32_t number) {
    const Bytes bytes_to_send = datagram(number);
    Buffer payload = io.allocate(bytes_to_send.size());
    REQUIRE(payload);
    std::copy(bytes_to_send.begin(), bytes_to_send.end(), payload.writable().begin());
    io.send(self, std::move(payload));
    io.flush();
  }

  // Until nothing comes any more and nothing is held back.
  std::vector<Bytes> run() {
    std::vector<Bytes> all;
    const auto keep = [&](const Endpoint&, Buffer payload) {
      all.push_back(copy_of(payload.bytes()));
    };
    for (std::uint32_t i = 0; i < kSent; ++i) {
      send(i);
      io.receive(keep);
    }
    const auto all_are_back = [&] {
      io.flush();
      io.receive(keep);
      return pools_are_full();
    };
    for (const Time give_up = now() + 20s; !all_are_back() && now() < give_up;) {
    }
    CHECK(pools_are_full());
    CHECK(io.counters().rx_bad_udp_checksum == 0);
    return all;
  }
};

std::vector<std::uint32_t> numbers(const std::vector<Bytes>& datagrams) {
  std::vector<std::uint32_t> all;
  for (const Bytes& datagram : datagrams) std::memcpy(&all.emplace_back(), datagram.data(), 4);
  return all;
}

std::size_t differing_bits(const Bytes& a, const Bytes& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(a[i] ^ b[i])));
  return count;
}

}  // namespace

TEST_CASE("A list of faults is read, and refused with what is expected") {
  CHECK_FALSE(parse_faults("").any());
  const FaultPlan plan =
      parse_faults("seed=7,loss=0.01,duplicate=0.5,reorder=1,flip=1e-3,overtaking=20,direction=tx");
  CHECK(plan == FaultPlan{7, 0.01, 0.5, 1, 1e-3, 20, false, true});
  CHECK(parse_faults("loss=1").any());
  CHECK(parse_faults("direction=rx") == FaultPlan{.sending = false});
  for (const char* wrong : {"loss", "loss=", "loss=2", "loss=-0.1", "loss=0.1x", "loss=nan", "=1",
                            "gain=1", "seed=-1", "direction=up", "overtaking=0", "loss=1,,flip=1"})
    CHECK_THROWS_WITH(parse_faults(wrong, "SLUICE_FAULTS"),
                      Catch::Matchers::StartsWith("SLUICE_FAULTS must be a list of seed=N") &&
                          Contains("not '" + std::string(wrong) + "'"));
}

TEST_CASE("Frames are lost as the seed says, each counted") {
  const auto lost = [](const char* faults, std::uint64_t IoCounters::*counter) {
    FaultyLoopback loop(faults);
    const std::vector<std::uint32_t> came = numbers(loop.run());
    CHECK(std::is_sorted(came.begin(), came.end()));
    CHECK(came.size() == FaultyLoopback::kSent - loop.io.counters().*counter);
    return loop.io.counters().*counter;
  };
  CHECK(lost("seed=7,loss=0.1,direction=tx", &IoCounters::tx_fault_lost) == 107);
  CHECK(lost("seed=7,loss=0.1,direction=rx", &IoCounters::rx_fault_lost) == 103);
  CHECK(lost("seed=8,loss=0.1,direction=tx", &IoCounters::tx_fault_lost) == 115);
  CHECK(lost("loss=1,direction=tx", &IoCounters::tx_fault_lost) == FaultyLoopback::kSent);
  CHECK(lost("seed=7", &IoCounters::rx_fault_lost) == 0);
}

TEST_CASE("Frames come twice, whole both times") {
  for (const char* direction : {"rx", "tx", "both"}) {
    FaultyLoopback loop((std::string("seed=7,duplicate=0.1,direction=") + direction).c_str());
    const std::vector<Bytes> came = loop.run();
    const IoCounters& counters = loop.io.counters();
    CHECK(came.size() ==
          FaultyLoopback::kSent + counters.rx_fault_duplicated + counters.tx_fault_duplicated);
    CHECK((counters.rx_fault_duplicated > 0) == (direction != std::string("tx")));
    CHECK((counters.tx_fault_duplicated > 0) == (direction != std::string("rx")));
    const std::vector<std::uint32_t> order = numbers(came);
    for (std::size_t i = 0; i < came.size(); ++i)
      CHECK(came[i] == FaultyLoopback::datagram(order[i]));
  }
}

TEST_CASE("Frames are overtaken by a few, and none is missing") {
  for (const char* direction : {"rx", "tx"}) {
    FaultyLoopback loop(
        (std::string("seed=7,reorder=0.1,overtaking=5,direction=") + direction).c_str());
    std::vector<std::uint32_t> order = numbers(loop.run());
    const IoCounters& counters = loop.io.counters();
    CHECK(counters.rx_fault_reordered + counters.tx_fault_reordered > 50);
    std::uint32_t newest = 0;
    std::size_t overtaken = 0;
    for (const std::uint32_t number : order) {
      if (number < newest) ++overtaken;
      newest = std::max(newest, number);
    }
    CHECK(overtaken > 50);
    CHECK(overtaken <= counters.rx_fault_reordered + counters.tx_fault_reordered);
    std::sort(order.begin(), order.end());
    std::vector<std::uint32_t> expected(FaultyLoopback::kSent);
    std::iota(expected.begin(), expected.end(), 0u);
    CHECK(order == expected);
  }
}

TEST_CASE("A frame that nobody overtakes is held back for a moment only") {
  FaultyLoopback loop("reorder=1");
  loop.send(0);
  std::size_t came = 0;
  for (const Time give_up = now() + 20s; came == 0 && now() < give_up;) {
    loop.io.flush();
    loop.io.receive([&](const Endpoint&, Buffer) { ++came; });
  }
  CHECK(came == 1);
  CHECK(loop.io.counters().tx_fault_reordered == 1);
  CHECK(loop.io.counters().rx_fault_reordered == 1);
}

TEST_CASE("What is held back when a port goes comes back to its pool") {
  FaultyLoopback loop("reorder=1,direction=tx,overtaking=1000");
  for (std::uint32_t i = 0; i < 10; ++i) loop.io.send(loop.self, loop.io.allocate(8));
  loop.io.remove_port(loop.port.id());
  CHECK(loop.pools_are_full());
  loop.io.add_port(loop.port.view(0));
}

TEST_CASE("One bit of a payload is flipped, unseen by UDP's checksum and by the sender") {
  const auto vlan = GENERATE(kNoVlan, kVlan);
  for (const char* direction : {"rx", "tx"}) {
    FaultyLoopback loop((std::string("seed=7,flip=0.1,direction=") + direction).c_str());
    loop.move_to_vlan(vlan);
    const std::vector<Bytes> came = loop.run();
    REQUIRE(came.size() == FaultyLoopback::kSent);
    std::uint64_t flipped = 0;
    for (std::uint32_t i = 0; i < FaultyLoopback::kSent; ++i) {
      const std::size_t bits = differing_bits(came[i], FaultyLoopback::datagram(i));
      CHECK(bits <= 1);
      flipped += bits;
    }
    CHECK(flipped > 50);
    CHECK(flipped == loop.io.counters().rx_fault_flipped + loop.io.counters().tx_fault_flipped);
  }

  FaultyLoopback loop("flip=1,direction=tx");
  Buffer payload = loop.io.allocate(100);
  const Bytes before = pattern(100);
  std::copy(before.begin(), before.end(), payload.writable().begin());
  for (const bool chain : {false, true}) {
    PortView view = loop.port.view(0);
    view.vlan = vlan;
    view.chain = chain;
    view.udp_checksum = UdpChecksum::kSoftware;
    loop.io.remove_port(view.id);
    loop.io.add_port(view);
    loop.io.send(loop.self, payload.share());
    loop.io.flush();
    const std::vector<Bytes> came = loop.receive_all();
    REQUIRE(came.size() == 1);
    CHECK(differing_bits(came[0], before) == 1);
    CHECK(copy_of(payload.bytes()) == before);
    CHECK(payload.references() == 1);
  }
  CHECK(loop.io.counters().tx_fault_flipped == 2);
}

// ---- ports
// ------------------------------------------------------------------------------------------

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

TEST_CASE("Addresses are read and written") {
  CHECK(parse_ipv4("169.254.0.1") == 0xA9FE'0001);
  CHECK(format_ipv4(0xA9FE'0001) == "169.254.0.1");
  CHECK_THROWS_WITH(parse_ipv4("300.1.1.1"), Contains("'300.1.1.1' is no IPv4 address"));
  CHECK(format_mac(kThem.mac) == "02:00:00:00:00:02");
}

// ---- vhost
// ------------------------------------------------------------------------------------------

TEST_CASE("A worker's device string is checked") {
  const TemporaryDirectory directory;
  CHECK_THAT(worker_device(directory.path, "a"),
             Contains("path=" + directory.path + "/a.sluice,server=1"));
  CHECK_THROWS_WITH(worker_device(directory.path, std::string(107, 'x')),
                    Contains("at most 107 expected"));
  CHECK_THROWS_WITH(worker_device(directory.path, "a/b"), Contains("without '/'"));
  CHECK_THROWS_WITH(worker_device(directory.path, "a,b"), Contains("without ','"));
  CHECK_THROWS_WITH(worker_device("/nonexistent", "a"), Contains("is the aggregator running?"));
  CHECK(unique_socket_name("w") != unique_socket_name("w"));
}

TEST_CASE("A daemon's directory is made for its owner alone, or refused clearly") {
  start_eal();
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

TEST_CASE("A daemon trusts no directory that others may have put sockets into") {
  start_eal();
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

TEST_CASE("A worker does not wait for its aggregator for ever") {
  start_eal();
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
  for (int life = 0; life < 2; ++life) {
    for (std::uint16_t id : pair.attached) pair.lane.remove_port(id);
    pair.attached.clear();
    BufferPool* const pools[] = {&pair.payloads};
    VhostOptions options;
    options.port = port_options("", LocalPair::kDaemonIp, 9000);
    VhostEvents events;
    events.attached = [&](Port& port) {
      pair.attached.push_back(port.id());
      pair.lane.add_port(port.view(0));
    };
    pair.vhost.reset();
    while (worker.port->link_up()) std::this_thread::yield();
    pair.vhost = std::make_unique<VhostDirectory>(pair.directory.path, options, pools, events);
    worker.at_daemon.clear();
    worker.io.send(worker.daemon, worker.io.allocate(100));
    CHECK(pair.poll_until([&] { return worker.turn(), !worker.at_daemon.empty(); }));
  }
}

// ---- idling
// -----------------------------------------------------------------------------------------

TEST_CASE("every idle strategy turns") {
  for (const auto& [strategy, word] : config::kIdleChoices) {
    Idle idle(strategy);
    for (std::size_t turn = 0; turn < 5000; ++turn) idle.work_done(turn % 2500 == 0);
  }
}
