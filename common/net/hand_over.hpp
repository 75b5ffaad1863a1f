// Frames that reached a lane and are for another one: where a device cannot steer by UDP port, it
// spreads them over its queues as it likes. Each lane has a bounded ring that all others fill.
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

  /// Lane `lane` is where datagrams to this UDP port belong. Before any lane runs.
  void listens(std::size_t lane, std::uint16_t udp_port);
  std::optional<std::size_t> listener(std::uint16_t udp_port) const;

  /// A frame as it was received, with its port's number. For any lane. False: the ring is full, and
  /// the frame the caller's still.
  bool give(std::size_t to, rte_mbuf* frame);
  /// What others gave this lane; for its thread. How many.
  std::size_t take(std::size_t lane, std::span<rte_mbuf*> frames);

 private:
  struct FreeRing {
    void operator()(rte_ring* ring) const;
  };
  std::vector<std::unique_ptr<rte_ring, FreeRing>> rings_;  // by lane
  std::vector<std::uint8_t> listeners_;                     // 1 + lane, by UDP port; 0: none
};

}  // namespace sluice::net
