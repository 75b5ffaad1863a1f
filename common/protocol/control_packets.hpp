// Small control packets on their way out: state machines append them, the engine sends them.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/job_protection.hpp"

namespace sluice {

struct ControlPacket {
  Endpoint to;
  std::array<std::byte, sizeof(wire::Join) + wire::kTrailerBytes> bytes;  // no other is longer
  std::size_t size = 0;
};

class ControlPackets {
 public:
  template <class T>
  void push(const Endpoint& to, const T& packet, const JobProtection& job) {
    static_assert(sizeof(T) <= sizeof(wire::Join));
    const Protection protection = job.of(wire::KindOf<T>::kValue);
    ControlPacket& out = packets_.emplace_back();
    out.to = to;
    out.size = sizeof(T) + protection.trailer_bytes();
    std::memcpy(out.bytes.data(), &packet, sizeof(T));
    protect({out.bytes.data(), out.size}, protection);
  }

  /// Sends all of them and clears the list. A packet for which the pool has no buffer is lost, as
  /// any packet may be. Returns how many were lost.
  std::size_t flush(PacketSink& sink) {
    std::size_t lost = 0;
    for (const ControlPacket& packet : packets_) {
      auto buffer = sink.allocate(packet.size);
      if (!buffer) {
        ++lost;
        continue;
      }
      std::memcpy(buffer.writable().data(), packet.bytes.data(), packet.size);
      sink.send(packet.to, std::move(buffer));
    }
    packets_.clear();
    return lost;
  }

  bool empty() const { return packets_.empty(); }

 private:
  std::vector<ControlPacket> packets_;
};

}  // namespace sluice
