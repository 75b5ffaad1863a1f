#include "common/net/hand_over.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"

namespace sluice::net {
namespace {

std::string new_ring_name() {
  static std::atomic<unsigned> number{0};
  return "to-lane-" + std::to_string(number++);
}

}  // namespace

void HandOver::FreeRing::operator()(rte_ring* ring) const {
  void* frame = nullptr;
  while (rte_ring_dequeue(ring, &frame) == 0) rte_pktmbuf_free(static_cast<rte_mbuf*>(frame));
  rte_ring_free(ring);
}

HandOver::HandOver(std::size_t lanes) {
  for (std::size_t i = 0; i < lanes; ++i) {
    rings_.emplace_back(rte_ring_create(new_ring_name().c_str(), limits::kHandOverFrames,
                                        SOCKET_ID_ANY, RING_F_SC_DEQ));
    if (!rings_.back())
      throw Error(ErrorCode::kUnavailable,
                  std::string("no memory for a ring between lanes: ") + rte_strerror(rte_errno));
  }
}

HandOver::~HandOver() = default;

void HandOver::listens(std::size_t lane, std::uint16_t udp_port) {
  listeners_.push_back({udp_port, lane});
}

std::optional<std::size_t> HandOver::listener(std::uint16_t udp_port) const {
  const auto found = std::find_if(listeners_.begin(), listeners_.end(),
                                  [&](const Listener& each) { return each.udp_port == udp_port; });
  return found == listeners_.end() ? std::nullopt : std::optional(found->lane);
}

bool HandOver::give(std::size_t to, rte_mbuf* frame) {
  return rte_ring_enqueue(rings_[to].get(), frame) == 0;
}

std::size_t HandOver::take(std::size_t lane, std::span<rte_mbuf*> frames) {
  return rte_ring_dequeue_burst(rings_[lane].get(), reinterpret_cast<void**>(frames.data()),
                                static_cast<unsigned>(frames.size()), nullptr);
}

}  // namespace sluice::net
