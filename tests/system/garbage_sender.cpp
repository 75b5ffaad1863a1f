// Sends an aggregator what no worker would send: `garbage_sender VHOST_DIRECTORY JOB SORT AMOUNT`.
//
//   rounds N        N packets of every sort: random bytes, truncated and overlong packets, every
//                   kind with a wrong token, unknown jobs
//   noise SECONDS   random bytes at the highest rate
//   forged SECONDS  members' packets with wrong tokens, at the highest rate
//   spin SECONDS    makes these and sends none, for comparison
//
// It ends with 0 if all of it was sent and the aggregator still answers a HELLO, even one of
// another version. It prints how many packets it has sent, and in how many seconds.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/idle.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/eal.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"
#include "common/net/vhost.hpp"
#include "common/protocol/build.hpp"

namespace {

using namespace sluice;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kAggregator = 0xA9FE'0001;
constexpr std::uint16_t kAggregatorPort = 4747;
constexpr std::uint16_t kOwnPort = 4748;
constexpr std::size_t kPayloadMax = 8972;
constexpr auto kTimeLimit = std::chrono::seconds(30);

class Sender {
 public:
  Sender(const std::string& directory, std::uint32_t job)
      : payloads_("garbage", 4095, kPayloadMax),
        headers_("headers", 255, 0),
        port_(options(directory), payloads_),
        io_(payloads_, headers_),
        job_(job) {
    io_.add_port(port_.view(0));
    io_.listen(kOwnPort);
    to_.port_id = port_.id();
    to_.ipv4 = kAggregator;
    to_.udp_port = kAggregatorPort;
    to_.local_udp_port = kOwnPort;
    wait_for("an answer to ARP", [this] {
      const auto mac = io_.resolve(port_.id(), kAggregator, net::now());
      if (mac) to_.mac = *mac;
      return mac.has_value();
    });
  }

  /// One packet of every sort.
  void send_round() {
    send(noise(random_() % kPayloadMax));
    for (const std::uint32_t job : {job_, job_ + 1}) {
      for (int kind = 0; kind < 256; ++kind) send(with_header(kind, job, random_() % 2000));
      send_as_member(wire::make<wire::KeepAlive>(job));
      send_as_member(wire::make<wire::Leave>(job));
      send_as_member(wire::make<wire::Ack>(job));
      send_as_member(wire::make<wire::Probe>(job));
      send_as_member(wire::make<wire::Join>(job));
      send(copy_of(wire::make<wire::KeepAliveAck>(job)));  // only workers get it
      send_data(job);
    }
  }

  /// Sends packets of 80 bytes for so long, at the highest rate. What the port does not accept is
  /// lost.
  void flood(std::string_view sort, Duration length) {
    std::vector<Bytes> packets;
    for (int i = 0; i < 256; ++i)
      packets.push_back(sort == "noise" ? noise(sizeof(wire::KeepAlive)) : forged(i));
    const Time end = net::now() + length;
    for (std::size_t i = 0; i % packets.size() != 0 || net::now() < end; ++i) {
      if (io_.backlog(port_.id()) == 0) sent_ += offer(packets[i % packets.size()], sort != "spin");
      if (i % limits::kBurst != 0) continue;
      io_.flush();
      io_.receive([](const Endpoint&, Buffer) {});
    }
  }

  /// Checks that the aggregator still answers a correct HELLO.
  void check_alive() {
    auto hello = wire::make<wire::Hello>(job_ + 2);
    hello.nonce = 4711;
    hello.world_size = 1;
    bool answered = false;
    wait_for("the answer to HELLO", [&] {
      send(copy_of(hello));
      io_.receive([&](const Endpoint&, Buffer payload) {
        Packet packet;
        answered |= Packet::parse(payload.bytes(), packet) == DropReason::kNone &&
                    packet.kind() == wire::Kind::kChallenge &&
                    packet.as<wire::Challenge>().nonce == 4711u;
      });
      return answered;
    });
  }

  /// Checks that it tells a HELLO of another version which versions it speaks.
  void check_versions() {
    auto hello = wire::make<wire::Hello>(job_ + 2);
    hello.header.version = wire::kVersion + 1;
    hello.nonce = 4712;
    bool answered = false;
    wait_for("the answer to a HELLO of another version", [&] {
      send(copy_of(hello));
      io_.receive([&](const Endpoint&, Buffer payload) {
        Packet packet;
        answered |= Packet::parse(payload.bytes(), packet) == DropReason::kNone &&
                    packet.kind() == wire::Kind::kVersions &&
                    packet.as<wire::Versions>().nonce == 4712u &&
                    packet.as<wire::Versions>().highest == wire::kVersion;
      });
      return answered;
    });
  }

  std::uint64_t sent() const { return sent_; }

 private:
  static net::PortOptions options(const std::string& directory) {
    net::PortOptions options;
    options.device = net::worker_device(directory, net::unique_socket_name("garbage"));
    options.mtu = 9000;
    options.ipv4 = kAggregator + 1;
    options.prefix = 16;
    return options;
  }

  template <class Done>
  void wait_for(const char* what, Done&& done) {
    Idle idle;
    const Time deadline = net::now() + kTimeLimit;
    while (!done()) {
      if (net::now() > deadline)
        throw std::runtime_error(std::string("timed out waiting for ") + what);
      io_.flush();
      idle.work_done(io_.receive([](const Endpoint&, Buffer) {}));
    }
  }

  template <class T>
  static Bytes copy_of(const T& packet) {
    const auto bytes = wire::bytes_of(packet);
    return {bytes.begin(), bytes.end()};
  }

  Bytes noise(std::size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }

  /// A correct header before random bytes; sometimes its length is wrong.
  Bytes with_header(int kind, std::uint32_t job, std::size_t size) {
    Bytes bytes = noise(sizeof(wire::Header) + size);
    const std::size_t told = random_() % 4 == 0 ? random_() % 10'000 : bytes.size();
    const auto header = copy_of(wire::header_of(static_cast<wire::Kind>(kind), job, told));
    std::copy(header.begin(), header.end(), bytes.begin());
    return bytes;
  }

  template <class T>
  Bytes with_wrong_token(const T& packet) {
    Bytes bytes = copy_of(packet);
    const Bytes token = noise(8);
    std::copy(token.begin(), token.end(), bytes.begin() + sizeof(wire::Header));
    return bytes;
  }

  Bytes forged(int i) {
    return i % 2 == 0 ? with_wrong_token(wire::make<wire::KeepAlive>(job_))
                      : with_wrong_token(wire::make<wire::Ack>(job_));
  }

  /// The whole packet, with an unknown token; then every shorter form of it.
  template <class T>
  void send_as_member(const T& packet) {
    const Bytes bytes = with_wrong_token(packet);
    for (std::size_t size = 0; size <= bytes.size(); ++size)
      send({bytes.begin(), bytes.begin() + size});
  }

  /// A valid first round of an op, of an unknown job.
  void send_data(std::uint32_t job) {
    const Geometry geometry = Geometry::make(100, ElementType::kFloat32, 256, kPayloadMax, 4, 0);
    Bytes bytes(wire::block_packet_bytes<wire::Data>(1, true, 400));
    auto packet = wire::BlockPacket<wire::Data>::begin(bytes, job, 1, true);
    packet.fixed.member.token = random_();
    packet.fixed.shape = wire::shape_of(geometry);
    packet.fixed.shape.columns = 1;
    packet.fixed.flags = wire::kDataOpening;
    packet.descriptor->collective = 1;
    packet.descriptor->op_type = 1;
    packet.descriptor->reduction = 1;
    packet.columns[0].index = 0;
    packet.columns[0].next = 0xffff'ffff;
    packet.columns[0].flags = wire::kColumnPresent;
    send(bytes);
  }

  void send(const Bytes& bytes) {
    Buffer buffer;
    wait_for("a buffer", [&] {
      buffer = io_.allocate(bytes.size());
      return static_cast<bool>(buffer) && io_.backlog(port_.id()) < 64;
    });
    std::copy(bytes.begin(), bytes.end(), buffer.writable().begin());
    io_.send(to_, std::move(buffer));
    io_.flush();
    ++sent_;
  }

  /// False if there is no buffer just now.
  bool offer(const Bytes& bytes, bool really) {
    Buffer buffer = io_.allocate(bytes.size());
    if (!buffer) return false;
    std::copy(bytes.begin(), bytes.end(), buffer.writable().begin());
    if (really) io_.send(to_, std::move(buffer));
    return true;
  }

  net::BufferPool payloads_;
  net::BufferPool headers_;
  net::Port port_;
  net::DatagramIo io_;
  const std::uint32_t job_;
  Endpoint to_;
  std::mt19937_64 random_{1};
  std::uint64_t sent_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  const std::string_view sort = argv[3];
  const unsigned long amount = std::strtoul(argv[4], nullptr, 10);
  net::EalOptions eal_options;
  eal_options.memory_mib = 128;
  const net::Eal eal(eal_options);
  Sender sender(argv[1], static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)));
  const Time begin = net::now();
  if (sort == "rounds")
    for (unsigned long i = 0; i < amount; ++i) sender.send_round();
  else
    sender.flood(sort, std::chrono::seconds(amount));
  const std::chrono::duration<double> took = net::now() - begin;
  sender.check_alive();
  sender.check_versions();
  std::printf("sent %llu in %.3f s\n", static_cast<unsigned long long>(sender.sent()),
              took.count());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "garbage_sender: %s\n", error.what());
  return 1;
}
