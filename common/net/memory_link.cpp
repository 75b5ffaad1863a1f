#include "common/net/memory_link.hpp"

#include <cassert>
#include <span>

#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_mbuf.h>
#include <rte_prefetch.h>
#include <rte_ring.h>

#include <sluice/error.hpp>

#include "common/base/packet_buffer.hpp"
#include "common/net/framing.hpp"

namespace sluice::net {

namespace {

constexpr LocalAddress kUs{{0x02, 's', 'l', 'g', 'e', 'n'}, 0xA9FE'0002};   // 169.254.0.2
constexpr LocalAddress kFar{{0x02, 's', 'l', 'l', 'n', 'e'}, 0xA9FE'0001};  // 169.254.0.1

// Reads a port from a frame's UDP header.
std::uint16_t udp_port_at(const rte_mbuf* frame, std::size_t offset) {
  const auto* at = rte_pktmbuf_mtod_offset(frame, const std::uint8_t*, kEthernetBytes + kIpv4Bytes);
  return static_cast<std::uint16_t>(at[offset] << 8 | at[offset + 1]);
}

}  // namespace

void MemoryLink::FreeRing::operator()(rte_ring* ring) const {
  void* frame = nullptr;
  while (rte_ring_dequeue(ring, &frame) == 0) rte_pktmbuf_free(static_cast<rte_mbuf*>(frame));
  rte_ring_free(ring);
}

MemoryLink::Ring MemoryLink::make_ring(const std::string& name, std::size_t frames) {
  Ring ring(rte_ring_create(name.c_str(), static_cast<unsigned>(frames), SOCKET_ID_ANY,
                            RING_F_SP_ENQ | RING_F_SC_DEQ));
  if (!ring)
    throw Error(ErrorCode::kUnavailable, "memory link '" + name + "' of " + std::to_string(frames) +
                                             " frames: " + rte_strerror(rte_errno));
  return ring;
}

MemoryLink::MemoryLink(const MemoryLinkOptions& options, BufferPool& payloads)
    : payloads_(payloads),
      to_far_(make_ring(options.name + "-up", options.frames)),
      to_us_(make_ring(options.name + "-down", options.frames)) {
  rte_ring* const incoming = to_far_.get();
  rte_ring* const outgoing = to_us_.get();
  if (rte_eth_from_rings(options.name.c_str(), &incoming, 1, &outgoing, 1, 0) < 0)
    throw Error(ErrorCode::kUnavailable,
                "memory link '" + options.name + "': no port: " + rte_strerror(rte_errno));
  PortOptions port;
  port.device = "net_ring_" + options.name;  // DPDK's name for a port that consists of rings
  port.mtu = options.mtu;
  port.mac = kFar.mac;
  port.ipv4 = kFar.ipv4;
  port.udp_checksum = UdpChecksum::kNone;
  port_ = std::make_unique<Port>(port, payloads);
}

MemoryLink::~MemoryLink() {
  for (std::size_t i = 0; i < queued_count_; ++i) rte_pktmbuf_free(queued_[i]);
}

PortView MemoryLink::port() const {
  PortView view = port_->view(0);
  view.off_machine = false;
  return view;
}

Endpoint MemoryLink::far_end(std::uint16_t udp_port, std::uint16_t local_udp_port) const {
  return {.port_id = port_->id(),
          .mac = kFar.mac,
          .ipv4 = kFar.ipv4,
          .udp_port = udp_port,
          .local_udp_port = local_udp_port};
}

// --- sending -----------------------------------------------------------------------------------

Buffer MemoryLink::allocate(std::size_t size) {
  Buffer buffer = payloads_.allocate(size);
  if (!buffer) ++counters_.pool_empty;
  return buffer;
}

void MemoryLink::send(const Endpoint& to, Buffer payload) {
  assert(payload.references() == 1);
  const std::size_t size = payload.bytes().size();
  rte_mbuf* frame = release(payload);
  char* headers = rte_pktmbuf_prepend(frame, static_cast<std::uint16_t>(kHeaderBytes));
  write_headers(
      std::span<std::byte, kHeaderBytes>(reinterpret_cast<std::byte*>(headers), kHeaderBytes), kUs,
      to, size, ip_id_++);
  ++counters_.tx_datagrams;
  counters_.tx_bytes += size;
  queued_[queued_count_++] = frame;
  if (queued_count_ == limits::kBurst) flush();
}

// The rings have room for all that protocol and options allow to be under way. What exceeds that is
// lost, as on any link.
void MemoryLink::flush() {
  const auto count = static_cast<unsigned>(queued_count_);
  const unsigned sent = rte_ring_sp_enqueue_burst(
      to_far_.get(), reinterpret_cast<void* const*>(queued_.data()), count, nullptr);
  counters_.tx_frames += sent;
  counters_.tx_backlog_full += count - sent;
  for (unsigned i = sent; i < count; ++i) rte_pktmbuf_free(queued_[i]);
  queued_count_ = 0;
}

// --- receiving ---------------------------------------------------------------------------------

void MemoryLink::poll() {
  count_ = 0;
  std::array<rte_mbuf*, limits::kBurst> frames;
  const unsigned n =
      rte_ring_sc_dequeue_burst(to_us_.get(), reinterpret_cast<void**>(frames.data()),
                                static_cast<unsigned>(limits::kBurst), nullptr);
  for (unsigned i = 0; i < n; ++i) rte_prefetch0(rte_pktmbuf_mtod(frames[i], void*));
  for (unsigned i = 0; i < n; ++i) take(frames[i]);
  counters_.rx_frames += n;
}

// Only a DatagramIo writes to the other end, so its headers are correct and only the ports are
// read. A shared payload comes behind a separate header, and continues without it.
void MemoryLink::take(rte_mbuf* frame) {
  Datagram& datagram = batch_[count_++];
  datagram.from = far_end(udp_port_at(frame, 0), udp_port_at(frame, 2));
  if (frame->nb_segs == 1) {
    rte_pktmbuf_adj(frame, static_cast<std::uint16_t>(kHeaderBytes));
  } else {
    rte_mbuf* const payload = frame->next;
    frame->next = nullptr;
    frame->nb_segs = 1;
    rte_pktmbuf_free_seg(frame);
    frame = payload;
  }
  datagram.payload = adopt(frame);
  ++counters_.rx_datagrams;
  counters_.rx_bytes += datagram.payload.bytes().size();
}

}  // namespace sluice::net
