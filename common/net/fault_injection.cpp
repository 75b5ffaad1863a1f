#include "common/net/fault_injection.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <rte_mbuf.h>

#include "common/net/clock.hpp"
#include "common/net/framing.hpp"

namespace sluice::net {
namespace {

/// The bytes before a datagram's payload, including a tag; 0 if the frame has no such payload, as
/// ARP. All that we send has this form.
std::size_t header_bytes(const rte_mbuf* frame) {
  constexpr std::array<std::uint8_t, 2> kIpv4{0x08, 0x00};
  const auto* const bytes = rte_pktmbuf_mtod(frame, const std::byte*);
  const std::size_t tag = vlan_of({bytes, frame->data_len}) ? kTagBytes : 0;
  const std::size_t headers = kHeaderBytes + tag;
  const bool is_ours =
      frame->pkt_len > headers &&
      std::memcmp(bytes + kEthernetBytes - kIpv4.size() + tag, kIpv4.data(), kIpv4.size()) == 0;
  return is_ours ? headers : 0;
}

bool is_ours_alone(const rte_mbuf* frame) {
  return frame->nb_segs == 1 && rte_mbuf_refcnt_read(frame) == 1;
}

}  // namespace

FaultInjector::Counted FaultInjector::counted(Direction direction) {
  if (direction == Direction::kReceiving)
    return {&IoCounters::rx_fault_lost, &IoCounters::rx_fault_duplicated,
            &IoCounters::rx_fault_reordered, &IoCounters::rx_fault_flipped};
  return {&IoCounters::tx_fault_lost, &IoCounters::tx_fault_duplicated,
          &IoCounters::tx_fault_reordered, &IoCounters::tx_fault_flipped};
}

FaultInjector::FaultInjector(const FaultPlan& plan, std::uint16_t port_id, Direction direction,
                             BufferPool& copies)
    : plan_(plan), counted_(counted(direction)), copies_(copies) {
  std::seed_seq seed{static_cast<std::uint32_t>(plan.seed >> 32),
                     static_cast<std::uint32_t>(plan.seed), std::uint32_t{port_id},
                     static_cast<std::uint32_t>(direction)};
  random_.seed(seed);
}

FaultInjector::~FaultInjector() {
  release([](const Held&) { return true; });
  for (rte_mbuf* frame : ready_) rte_pktmbuf_free(frame);
}

bool FaultInjector::happens(double probability) {
  constexpr double kUnit = 0x1p-53;
  return probability > 0 && static_cast<double>(random_() >> 11) * kUnit < probability;
}

void FaultInjector::take(rte_mbuf* frame, IoCounters& counters) {
  ++taken_;
  if (happens(plan_.loss)) {
    ++(counters.*counted_.lost);
    rte_pktmbuf_free(frame);
  } else {
    damage(frame, counters);
  }
  release([this](const Held& held) { return taken_ >= held.until; });
}

void FaultInjector::damage(rte_mbuf* frame, IoCounters& counters) {
  if (happens(plan_.duplicate)) {
    if (rte_mbuf* const twin = copy(frame)) {
      ++(counters.*counted_.duplicated);
      ready_.push_back(twin);
    }
  }
  if (happens(plan_.flip)) frame = flip(frame, counters);
  if (happens(plan_.reorder) && held_.size() < kHeldMax) {
    ++(counters.*counted_.reordered);
    held_.push_back({frame, taken_ + 1 + random_() % plan_.overtaking, after(now(), kHoldTime)});
  } else {
    ready_.push_back(frame);
  }
}

template <class Due>
void FaultInjector::release(const Due& due) {
  std::erase_if(held_, [&](const Held& held) {
    if (!due(held)) return false;
    ready_.push_back(held.frame);
    return true;
  });
}

std::size_t FaultInjector::pass_on(std::span<rte_mbuf*> out) {
  if (!held_.empty()) release([t = now()](const Held& held) { return t >= held.deadline; });
  const std::size_t count = std::min(out.size(), ready_.size());
  const auto end = ready_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(ready_.begin(), end, out.begin());
  ready_.erase(ready_.begin(), end);
  return count;
}

/// Returns a copy in one segment that nobody else has; null if there is no buffer for it.
rte_mbuf* FaultInjector::copy(const rte_mbuf* frame) {
  rte_mbuf* const twin = rte_pktmbuf_alloc(copies_.handle());
  if (!twin) return nullptr;
  char* out = rte_pktmbuf_append(twin, static_cast<std::uint16_t>(frame->pkt_len));
  if (!out) {
    rte_pktmbuf_free(twin);
    return nullptr;
  }
  for (const rte_mbuf* segment = frame; segment; segment = segment->next) {
    std::memcpy(out, rte_pktmbuf_mtod(segment, const char*), segment->data_len);
    out += segment->data_len;
  }
  twin->ol_flags = frame->ol_flags;
  twin->vlan_tci = frame->vlan_tci;
  twin->l2_len = frame->l2_len;
  twin->l3_len = frame->l3_len;
  return twin;
}

/// Returns the damaged frame, which may be a copy of `frame`: other owners of its payload must not
/// see the damage. The UDP checksum becomes 0, which means that there is none, so that the other
/// end accepts the frame.
rte_mbuf* FaultInjector::flip(rte_mbuf* frame, IoCounters& counters) {
  const std::size_t headers = header_bytes(frame);
  if (headers == 0) return frame;
  if (!is_ours_alone(frame)) {
    rte_mbuf* const own = copy(frame);
    if (!own) return frame;
    rte_pktmbuf_free(frame);
    frame = own;
  }
  auto* const bytes = rte_pktmbuf_mtod(frame, std::uint8_t*);
  const std::uint64_t bit = random_() % (8 * (frame->pkt_len - headers));
  bytes[headers + bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  std::memset(bytes + headers - 2, 0, 2);  // UDP's checksum
  frame->ol_flags &= ~(RTE_MBUF_F_TX_UDP_CKSUM | RTE_MBUF_F_RX_L4_CKSUM_MASK);
  ++(counters.*counted_.flipped);
  return frame;
}

}  // namespace sluice::net
