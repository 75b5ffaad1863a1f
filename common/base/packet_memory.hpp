// What packet buffers cost: the arithmetic behind the memory rules of docs/sizing.md.
#pragma once

#include <cstddef>

namespace sluice {

/// Bytes that one buffer takes of packet memory. Ethernet's header and what drivers want beyond the
/// IP packet round it up to whole KiB; 352 more are the headroom and DPDK's own. A test compares it
/// with what a pool really takes.
constexpr std::size_t packet_buffer_bytes(std::size_t mtu) {
  constexpr std::size_t kKib = 1024;
  constexpr std::size_t kEthernetAndDriver = 14 + 128;
  return (mtu + kEthernetAndDriver + kKib - 1) / kKib * kKib + 352;
}

/// Bytes of a buffer for the headers of a shared payload.
inline constexpr std::size_t kHeaderBufferBytes = 512;

}  // namespace sluice
