// Chooses source ports by which a device's RSS brings a worker's datagrams to the queues of the
// right lanes. The hash is Toeplitz's, of both addresses and ports. It is linear: the hash of a
// tuple is the sum (xor) of the contributions of its bytes. So a port is found by a few look-ups,
// however often unauthenticated peers ask.
//
// The lower bits of the hash select an entry of the device's table. It is computed beforehand which
// source ports contribute each value of these bits, and which entries lead to each queue.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/source_ports.hpp"

namespace sluice::net {

/// The input of a frame's hash, in host byte order.
struct FlowTuple {
  std::uint32_t source_ipv4 = 0;
  std::uint32_t destination_ipv4 = 0;
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = 0;
};

/// How many bytes of a key the hash of a FlowTuple uses.
inline constexpr std::size_t kRssKeyBytes = 16;

/// DPDK's software Toeplitz hash. `key` has kRssKeyBytes or more.
std::uint32_t rss_hash(std::span<const std::uint8_t> key, const FlowTuple& tuple);

/// How a device spreads UDP datagrams over its queues.
struct Rss {
  std::vector<std::uint8_t> key;
  std::vector<std::uint16_t> table;  ///< queues, by the lower bits of the hash
  friend bool operator==(const Rss&, const Rss&) = default;
};

/// Asks a started device. Throws Error kUnavailable if it does not spread by UDP ports, or does not
/// say.
Rss read_rss(std::uint16_t port_id);

class SourcePortChooser {
 public:
  static constexpr std::size_t kMaxTable = 512;  ///< bounds the cost of a choice

  /// For a port at `own_ipv4` whose queue l is for UDP port `first_udp_port` + l. Throws Error
  /// kUnavailable if the size of the table is not a power of two up to kMaxTable, or if some worker
  /// could not reach some queue with any source port.
  SourcePortChooser(const Rss& rss, std::uint32_t own_ipv4, std::uint16_t first_udp_port,
                    std::uint16_t lanes);

  /// The port from which a worker must send, for each lane. Ranks that share an address get
  /// different ports, as long as there are enough.
  SourcePorts choose(std::uint32_t worker_ipv4, Rank rank) const;

 private:
  struct Class {  // source ports with the same contribution: a part of lower_
    std::uint16_t begin = 0;
    std::uint16_t size = 0;
  };

  void classify(std::span<const std::uint8_t> key);
  bool reaches(std::uint16_t lane, std::size_t hash) const;
  std::size_t hash_of(std::uint32_t worker_ipv4) const;

  const std::size_t mask_;
  std::array<std::array<std::uint16_t, 256>, 4> of_worker_{};  // by byte of its address; the first
                                                               // one on the wire at 0
  // The part that is the same for all that send to a lane.
  std::vector<std::uint16_t> of_lane_;
  std::vector<Class> classes_;                       // by contribution
  std::vector<std::uint16_t> lower_;                 // parts of source ports, by class
  std::vector<std::vector<std::uint16_t>> entries_;  // entries of the table, by queue
};

}  // namespace sluice::net
