// The memory of packet buffers: the computation behind the rules of docs/sizing.md.
#pragma once

#include <cstddef>

namespace sluice {

/// Bytes of packet memory that one buffer takes. The IP packet, Ethernet's header and the room that
/// drivers want are rounded up to whole KiB; 352 bytes are added for the headroom and DPDK's own
/// data. A test compares this with the size of a real pool.
constexpr std::size_t packet_buffer_bytes(std::size_t mtu) {
  constexpr std::size_t kKib = 1024;
  constexpr std::size_t kEthernetAndDriver = 14 + 128;
  return (mtu + kEthernetAndDriver + kKib - 1) / kKib * kKib + 352;
}

/// The bytes of a buffer for the headers of a shared payload.
inline constexpr std::size_t kHeaderBufferBytes = 512;

}  // namespace sluice
