// A link inside this process: at one end is a port for a DatagramIo, at the other end one caller
// sends and receives datagrams. With it a lane can be measured without a peer process, over a port
// that costs almost nothing and gathers headers and payloads by itself, as a NIC does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/base/endpoint.hpp"
#include "common/base/limits.hpp"
#include "common/net/buffer.hpp"
#include "common/net/io_counters.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"

struct rte_ring;

namespace sluice::net {

struct MemoryLinkOptions {
  std::string name = "memory0";  ///< unique in the process, at most 16 characters
  std::size_t frames = 4096;     ///< each direction can hold one less; a power of two
  std::uint16_t mtu = 9000;
};

/// Our end is a sink. It and the port may be used by one thread each.
class MemoryLink final : public PacketSink {
 public:
  /// Both ends allocate payloads from `payloads`. Throws Error kUnavailable, kInvalidArgument.
  MemoryLink(const MemoryLinkOptions& options, BufferPool& payloads);
  ~MemoryLink();
  MemoryLink(const MemoryLink&) = delete;
  MemoryLink& operator=(const MemoryLink&) = delete;

  /// The other end, for a DatagramIo.
  PortView port() const;

  /// The endpoint of `udp_port` at the other end, as seen from `local_udp_port` at our end.
  Endpoint far_end(std::uint16_t udp_port, std::uint16_t local_udp_port) const;

  // As in DatagramIo. A payload that is sent has no other references.
  Buffer allocate(std::size_t size) override;
  void send(const Endpoint& to, Buffer payload) override;
  void flush();
  template <class Handler>
  std::size_t receive(Handler&& handler) {
    poll();
    for (std::size_t i = 0; i < count_; ++i)
      handler(std::as_const(batch_[i].from), std::move(batch_[i].payload));
    return count_;
  }

  /// The counters of our end.
  const IoCounters& counters() const { return counters_; }

 private:
  struct Datagram {
    Endpoint from;
    Buffer payload;
  };
  struct FreeRing {
    void operator()(rte_ring* ring) const;
  };
  using Ring = std::unique_ptr<rte_ring, FreeRing>;

  static Ring make_ring(const std::string& name, std::size_t frames);
  void poll();
  void take(rte_mbuf* frame);

  BufferPool& payloads_;
  Ring to_far_;
  Ring to_us_;
  std::unique_ptr<Port> port_;
  std::array<Datagram, limits::kBurst> batch_;  // of the last poll
  std::size_t count_ = 0;
  std::array<rte_mbuf*, limits::kBurst> queued_{};
  std::size_t queued_count_ = 0;
  std::uint16_t ip_id_ = 0;
  IoCounters counters_;
};

}  // namespace sluice::net
