// A host that joins multicast groups: `net_groups DEVICE ADDRESS QUEUES GROUP...`.
//
// It prints "joined by MEANS", then "got TEXT" for each datagram to UDP port 4748. On SIGUSR1 it
// leaves the groups and prints "left"; on SIGTERM it prints its counters, and ends.
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/idle.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/eal.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"

namespace {

using namespace sluice;

constexpr std::uint16_t kUdpPort = 4748;
constexpr std::uint16_t kMtu = 1500;
constexpr std::size_t kBuffers = 16'383;  // the two rings of AF_XDP take 4096 per queue

volatile std::sig_atomic_t leave = 0;
volatile std::sig_atomic_t stop = 0;

void on_signal(int number) {
  (number == SIGUSR1 ? leave : stop) = 1;
}

void run(const net::PortOptions& options, std::vector<std::uint32_t> groups) {
  net::BufferPool payloads("payloads", kBuffers, kMtu - 28);
  net::BufferPool headers("headers", 255, 0);
  net::Port port(options, payloads);
  net::DatagramIo io(payloads, headers);
  for (std::uint16_t queue = 0; queue < options.queues; ++queue) io.add_port(port.view(queue));
  io.listen(kUdpPort);
  const auto means = port.receive_groups(groups);
  io.set_groups(groups, net::now());
  io.flush();
  std::printf("joined by %s\n", net::name(means));
  for (Idle idle; !stop;) {
    if (leave && !groups.empty()) {
      groups.clear();
      port.receive_groups(groups);
      io.set_groups(groups, net::now());
      std::printf("left\n");
    }
    io.on_time(net::now());
    idle.work_done(io.receive([](const Endpoint&, const Buffer& payload) {
      const auto bytes = payload.bytes();
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      std::printf("got %s\n", std::string(text).c_str());
    }));
    io.flush();
  }
  for (const auto& [name, member] : net::kIoCounterNames)
    std::printf("%s %llu\n", std::string(name).c_str(),
                static_cast<unsigned long long>(io.counters().*member));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fprintf(stderr, "usage: net_groups DEVICE ADDRESS QUEUES GROUP...\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const int number : {SIGUSR1, SIGTERM}) std::signal(number, on_signal);
  const net::Eal eal({});
  net::PortOptions options;
  options.device = argv[1];
  options.ipv4 = net::parse_ipv4(argv[2]);
  options.queues = static_cast<std::uint16_t>(std::stoul(argv[3]));
  options.mtu = kMtu;
  std::vector<std::uint32_t> groups;
  for (int i = 4; i < argc; ++i) groups.push_back(net::parse_ipv4(argv[i]));
  run(options, groups);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "net_groups: %s\n", error.what());
  return 1;
}
