// Passes frames that reached one lane to the lane that they are for. A device that cannot steer by
// UDP port spreads frames over its queues in its own way. Each lane has a bounded ring that all
// others fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

struct rte_mbuf;
struct rte_ring;

namespace sluice::net {

class HandOver {
 public:
  /// `lanes`: 1 or more. Throws Error kUnavailable if there is no memory.
  explicit HandOver(std::size_t lanes);
  ~HandOver();
  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  /// Registers that datagrams to this UDP port belong to lane `lane`. Call it before any lane runs.
  void listens(std::size_t lane, std::uint16_t udp_port);
  std::optional<std::size_t> listener(std::uint16_t udp_port) const;

  /// Passes a frame as it was received, with the number of its port. For any lane. Returns false if
  /// the ring is full; then the frame still belongs to the caller.
  bool give(std::size_t to, rte_mbuf* frame);
  /// Takes what other lanes gave to this one, on this one's thread. Returns how many.
  std::size_t take(std::size_t lane, std::span<rte_mbuf*> frames);

 private:
  struct FreeRing {
    void operator()(rte_ring* ring) const;
  };
  std::vector<std::unique_ptr<rte_ring, FreeRing>> rings_;  // by lane
  std::vector<std::uint8_t> listeners_;                     // 1 + lane, by UDP port; 0: none
};

}  // namespace sluice::net
