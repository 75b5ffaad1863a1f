#include "common/net/hand_over.hpp"

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

HandOver::HandOver(std::size_t lanes) : listeners_(65536) {
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
  listeners_[udp_port] = static_cast<std::uint8_t>(1 + lane);
}

std::optional<std::size_t> HandOver::listener(std::uint16_t udp_port) const {
  const std::uint8_t found = listeners_[udp_port];
  return found == 0 ? std::nullopt : std::optional(found - std::size_t{1});
}

bool HandOver::give(std::size_t to, rte_mbuf* frame) {
  return rte_ring_enqueue(rings_[to].get(), frame) == 0;
}

std::size_t HandOver::take(std::size_t lane, std::span<rte_mbuf*> frames) {
  return rte_ring_dequeue_burst(rings_[lane].get(), reinterpret_cast<void**>(frames.data()),
                                static_cast<unsigned>(frames.size()), nullptr);
}

}  // namespace sluice::net
