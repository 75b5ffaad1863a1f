// A port whose transmit ring is its receive ring.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/net/datagram_io.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/frame_parts.hpp"
#include "tests/unit/one_eal.hpp"

namespace sluice::net::testing {

inline PortOptions port_options(const std::string& device, std::uint32_t ipv4,
                                std::uint16_t mtu = 1500) {
  PortOptions options;
  options.device = device;
  options.ipv4 = ipv4;
  options.mtu = mtu;
  return options;
}

/// What is sent comes back.
struct Loopback {
  BufferPool payloads;
  BufferPool headers;
  Port port;
  DatagramIo io;
  Endpoint self;  // from and to ourselves

  explicit Loopback(bool chain = false, std::size_t buffers = 2500, std::size_t backlog_max = 64,
                    std::size_t header_room = 0)
      : payloads((start_eal_once(), "loop"), buffers, 1472),
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

}  // namespace sluice::net::testing
