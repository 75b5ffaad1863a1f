// Two processes exchange datagrams over the ports that Sluice runs on: an echo side as a daemon is
// built (lane thread, control thread, vhost directory) and a ping side as a worker is. Every byte
// and the order are checked; workers are killed and new ones must find their place again.
//
//   net_ping                  everything this machine allows; exit status 0 only if all was right
//   net_ping ping ...         the ping side, started by the former
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/system/net_echo.hpp"

namespace {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;

constexpr std::uint32_t kWindow = 64;

std::size_t fixed_size = 0;  // for rates: equal datagrams, of which only the number is checked

// Sizes from 8 to the largest, in an order that mixes them.
std::size_t size_of(std::uint32_t sequence) {
  if (fixed_size) return fixed_size;
  return 8 + std::size_t{sequence} * 7919 % (kPayloadMax - 7);
}

void fill(std::span<std::byte> out, std::uint32_t sequence) {
  std::memcpy(out.data(), &sequence, sizeof(sequence));
  if (fixed_size) return;
  for (std::size_t i = sizeof(sequence); i < out.size(); ++i) out[i] = byte_at(sequence, i);
}

bool is_right(std::span<const std::byte> in, std::uint32_t sequence) {
  if (in.size() != size_of(sequence) || std::memcmp(in.data(), &sequence, sizeof(sequence)) != 0)
    return false;
  if (fixed_size) return true;
  for (std::size_t i = sizeof(sequence); i < in.size(); ++i)
    if (in[i] != byte_at(sequence, i)) return false;
  return true;
}

// ---- the ping side
// --------------------------------------------------------------------------------

MacAddress find_peer(DatagramIo& io, std::uint16_t port) {
  Idle idle;
  for (const Time give_up = now() + kTimeLimit; now() < give_up;) {
    if (const auto mac = io.resolve(port, kEchoIp, now())) return *mac;
    io.flush();
    idle.work_done(io.receive([](const Endpoint&, Buffer) {}));
  }
  fail("the echo side does not answer ARP");
}

// Keeps a window of datagrams under way; `count` 0 means for ever.
void ping(DatagramIo& io, const Endpoint& peer, std::uint32_t count) {
  std::uint32_t sent = 0;
  std::uint32_t received = 0;
  Idle idle;
  Time progress = now();
  const Time start = progress;
  while (count == 0 || received < count) {
    while ((count == 0 || sent < count) && sent - received < kWindow) {
      Buffer payload = io.allocate(size_of(sent));
      if (!payload) break;
      fill(payload.writable(), sent);
      io.send(peer, std::move(payload));
      ++sent;
    }
    io.flush();
    const std::uint32_t before = received;
    io.receive([&](const Endpoint& from, Buffer payload) {
      if (!(from == peer)) fail("a datagram from someone else");
      if (!is_right(payload.bytes(), received))
        fail("echo " + std::to_string(received) + " is wrong or out of order");
      ++received;
    });
    idle.work_done(received - before);
    const Time t = now();
    if (received != before) progress = t;
    if (t - progress > kTimeLimit) {
      print_counters("ping", io.counters());
      fail("no echo after " + std::to_string(received) + " datagrams");
    }
  }
  const double seconds = std::chrono::duration<double>(now() - start).count();
  std::printf("  %u round trips in %.2f s: %.0f datagrams/s each way, %.2f Gbit/s each way\n",
              count, seconds, count / seconds,
              static_cast<double>(io.counters().tx_bytes) * 8e-9 / seconds);
}

int ping_main(const std::string& kind, const std::string& where, std::uint32_t count) {
  const Eal eal({});
  BufferPool payloads("payloads", 2048, kPayloadMax);
  BufferPool headers("headers", 1024, 0);
  {
    Port port(port_options(device_of(kind, where), kPingIp), payloads);
    DatagramIo io(payloads, headers);
    io.add_port(port.view(0));
    io.listen(kPingPort);
    Endpoint peer = echo_side(port.view(0));
    peer.mac = find_peer(io, port.id());
    ping(io, peer, count);
    print_counters("ping", io.counters());
  }
  if (payloads.available() != payloads.size() || headers.available() != headers.size())
    fail("the ping side lost buffers");
  return 0;
}

// ---- the echo side
// --------------------------------------------------------------------------------

void wait_for_success(Child& child, const std::function<void()>& control) {
  int status = 0;
  until(
      "the ping side", [&] { return child.ended(status); }, control);
  if (status != 0) fail("the ping side failed");
}

// A file that looks like a worker's socket, left by one that died.
void leave_stale_socket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    fail("cannot bind " + path);
  close(fd);
}

void echo_over_vhost(const std::string& self, BufferPool& payloads, BufferPool& headers) {
  std::string directory = "/tmp/net_ping.XXXXXX";
  if (!mkdtemp(directory.data())) fail("cannot make a directory");
  leave_stale_socket(directory + "/stale.sluice");
  {
    EchoDirectory vhost(directory, payloads, headers);
    const auto control = [&] { vhost.control(); };

    control();
    if (vhost.counters().stale_removed != 1 || vhost.ports() != 0) fail("the stale socket stays");

    std::printf("vhost: 100000 datagrams of 8 to %zu bytes\n", kPayloadMax);
    Child first({self, "ping", "vhost", directory, "100000", "0"});
    wait_for_success(first, control);
    for (const std::string size : {"64", "1422", "8972"}) {
      std::printf("vhost: rate at %s bytes\n", size.c_str());
      Child rate({self, "ping", "vhost", directory, "1000000", size});
      wait_for_success(rate, control);
    }

    for (int life = 1; life <= 5; ++life) {
      const std::uint64_t echoed = vhost.echoed();
      Child victim({self, "ping", "vhost", directory, "0", "0"});
      until(
          "traffic", [&] { return vhost.echoed() > echoed + 5000; }, control);
      const Time killed = now();
      victim.stop(SIGKILL);
      const std::uint64_t detached = vhost.counters().detached;
      until(
          "the death to be noticed", [&] { return vhost.counters().detached > detached; }, control);
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now() - killed).count();
      std::printf("vhost: worker %d killed with -9 under load: unplugged after %lld ms\n", life,
                  static_cast<long long>(ms));
    }

    std::printf("vhost: a new worker after the kills\n");
    Child last({self, "ping", "vhost", directory, "20000", "0"});
    wait_for_success(last, control);
    until(
        "the last port to go", [&] { return vhost.ports() == 0; }, control);
  }
  if (!std::filesystem::remove(directory)) fail("sockets were left behind");
}

void echo_over_af_packet(const std::string& self, BufferPool& payloads, BufferPool& headers) {
  if (geteuid() != 0 || std::system("ip netns list >/dev/null 2>&1") != 0) {
    std::printf("skipped: af_packet: needs root and ip(8)\n");
    return;
  }
  VethPair veth;
  Port port(port_options("net_af_packet0,iface=" + veth.near_end(), kEchoIp), payloads);
  EchoLane lane(payloads, headers);
  lane.post([view = port.view(0)](DatagramIo& io) { io.add_port(view); });
  std::printf("af_packet: 20000 datagrams of 8 to %zu bytes\n", kPayloadMax);
  Child child({"ip", "netns", "exec", veth.space(), self, "ping", "af_packet", veth.far_end(),
               "20000", "0"});
  wait_for_success(child, [] {});
  for (const std::string size : {"1422", "8972"}) {
    std::printf("af_packet: rate at %s bytes\n", size.c_str());
    Child rate({"ip", "netns", "exec", veth.space(), self, "ping", "af_packet", veth.far_end(),
                "100000", size});
    wait_for_success(rate, [] {});
  }
}

int echo_main() {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const Eal eal({});
  BufferPool payloads("payloads", 4096, kPayloadMax);
  BufferPool headers("headers", 4096, 0);
  echo_over_vhost(self, payloads, headers);
  echo_over_af_packet(self, payloads, headers);
  if (payloads.available() != payloads.size() || headers.available() != headers.size())
    fail("the echo side lost buffers");
  std::printf("all right\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 6 && std::string(argv[1]) == "ping") {
    fixed_size = std::strtoul(argv[5], nullptr, 10);
    return ping_main(argv[2], argv[3],
                     static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10)));
  }
  return echo_main();
} catch (const std::exception& error) {
  std::fprintf(stderr, "net_ping: %s\n", error.what());
  return 1;
}
