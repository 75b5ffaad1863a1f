#include "common/net/datagram_io.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstring>
#include <thread>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_prefetch.h>

#include "common/base/packet_buffer.hpp"
#include "common/net/capture.hpp"
#include "common/net/clock.hpp"
#include "common/net/fault_injection.hpp"
#include "common/net/igmp.hpp"
#include "common/net/neighbours.hpp"
#include "common/net/peer_memory.hpp"
#include "common/net/tx_queue.hpp"

namespace sluice::net {

struct DatagramIo::PortState {
  PortState(const PortView& v, std::uint8_t l, std::size_t backlog_max)
      : view(v), lane(l), tx(v.id, v.queue, backlog_max) {}

  PortView view;
  const std::uint8_t lane;  // at the other end, if it has several queues
  TxQueue tx;
  std::unique_ptr<FaultInjector> rx_faults;  // usually null
  Neighbours neighbours;
  // For the whole port, at its first queue; only where it leaves the machine.
  std::unique_ptr<Igmp> igmp;
  std::vector<Datagram> kept;  // received, but there was no room for their answers
  std::uint16_t ip_id = 0;
  std::uint64_t arp_answers = 0;  // answers to our requests
};

namespace {

std::span<const std::byte> data_of(const rte_mbuf* mbuf) {
  return {rte_pktmbuf_mtod(mbuf, const std::byte*), mbuf->data_len};
}

// What a port reports about the checksums of a received frame.
constexpr std::uint64_t kVerdicts = RTE_MBUF_F_RX_IP_CKSUM_MASK | RTE_MBUF_F_RX_L4_CKSUM_MASK;

// A port that has verified a checksum says "good". It says "none" where a peer on the same machine
// has left it unfinished. For "bad" and "unknown" the bytes are checked.
Verified verified_by_port(const rte_mbuf* mbuf) {
  const std::uint64_t ip = mbuf->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
  const std::uint64_t udp = mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
  return {.ip = ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD,
          .udp = udp == RTE_MBUF_F_RX_L4_CKSUM_GOOD || udp == RTE_MBUF_F_RX_L4_CKSUM_NONE};
}

// Whether a received frame belongs to the port's VLAN. If so, its tag is removed; some devices have
// removed it themselves. Without a VLAN, parse_frame refuses frames with a tag.
bool take_off_tag(std::uint16_t vlan, rte_mbuf* frame) {
  const bool is_off = (frame->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0;
  if (vlan == kNoVlan) return !is_off;
  if (is_off) return vlan_of_tag(frame->vlan_tci) == vlan;
  if (vlan_of(data_of(frame)) != vlan) return false;
  take_out_tag({rte_pktmbuf_mtod(frame, std::byte*), frame->data_len});
  rte_pktmbuf_adj(frame, std::uint16_t{kTagBytes});
  return true;
}

std::uint64_t IoCounters::*drop_counter(FrameVerdict verdict) {
  switch (verdict) {
    case FrameVerdict::kTooShort:
      return &IoCounters::rx_too_short;
    case FrameVerdict::kOtherMac:
      return &IoCounters::rx_other_mac;
    case FrameVerdict::kOtherVlan:
      return &IoCounters::rx_other_vlan;
    case FrameVerdict::kBadIpHeader:
      return &IoCounters::rx_bad_ip_header;
    case FrameVerdict::kIpOptions:
      return &IoCounters::rx_ip_options;
    case FrameVerdict::kFragment:
      return &IoCounters::rx_fragment;
    case FrameVerdict::kBadIpChecksum:
      return &IoCounters::rx_bad_ip_checksum;
    case FrameVerdict::kOtherIp:
      return &IoCounters::rx_other_ip;
    case FrameVerdict::kBadLength:
      return &IoCounters::rx_bad_length;
    case FrameVerdict::kBadUdpChecksum:
      return &IoCounters::rx_bad_udp_checksum;
    case FrameVerdict::kBadIcmp:
      return &IoCounters::rx_bad_icmp;
    case FrameVerdict::kBadIgmp:
      return &IoCounters::igmp_ignored;
    case FrameVerdict::kOtherProtocol:
    case FrameVerdict::kDatagram:
    case FrameVerdict::kArp:
    case FrameVerdict::kEcho:
    case FrameVerdict::kIgmp:
      break;
  }
  return &IoCounters::rx_other_protocol;
}

// The address whose Ethernet address leads to `ipv4`.
std::uint32_t next_hop(const PortView& port, std::uint32_t ipv4) {
  const bool on_link = ((ipv4 ^ port.address.ipv4) >> (32 - port.prefix)) == 0;
  return on_link || port.gateway == 0 ? ipv4 : port.gateway;
}

// Always the same for one port, and different for different ports.
std::uint64_t seed_of(const MacAddress& mac) {
  std::uint64_t seed = 0;
  for (const std::uint8_t byte : mac) seed = seed << 8 | byte;
  return seed;
}

// Writes the headers of `payload` into the 42 bytes at the front of `frame`, with the checksums
// that the port wants.
void write_frame_headers(const PortView& port, std::uint16_t ip_id, const Endpoint& to,
                         std::span<const std::byte> payload, rte_mbuf* frame) {
  const std::span<std::byte, kHeaderBytes> out(rte_pktmbuf_mtod(frame, std::byte*), kHeaderBytes);
  write_headers(out, port.address, to, payload.size(), ip_id);
  if (port.udp_checksum == UdpChecksum::kSoftware) {
    write_udp_checksum(out, payload);
  } else if (port.udp_checksum == UdpChecksum::kOffload) {
    write_udp_pseudo_checksum(out);
    frame->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_UDP_CKSUM;
    frame->l2_len = kEthernetBytes + (port.vlan == kNoVlan ? 0 : kTagBytes);
    frame->l3_len = kIpv4Bytes;
  }
}

}  // namespace

DatagramIo::DatagramIo(BufferPool& payloads, BufferPool& headers, std::size_t backlog_max,
                       std::size_t fan_out)
    : payloads_(payloads), headers_(headers), backlog_max_(backlog_max), fan_out_(fan_out) {
  assert(backlog_max >= limits::kMinBacklog && backlog_max <= 65535 && fan_out <= backlog_max);
  groups_.reserve(kMaxGroups);
}

DatagramIo::~DatagramIo() = default;

std::span<const std::unique_ptr<DatagramIo::PortState>> DatagramIo::queues_of(
    std::uint16_t port_id) const {
  if (port_id >= by_id_.size()) return {};
  return by_id_[port_id].all;
}

DatagramIo::PortState* DatagramIo::find(std::uint16_t port_id, std::uint8_t lane) const {
  if (port_id >= by_id_.size() || lane >= limits::kMaxLanes) return nullptr;
  return by_id_[port_id].to_lane[lane];
}

void DatagramIo::add_port(const PortView& port) {
  assert(port.udp_checksum != UdpChecksum::kAuto);
  if (by_id_.size() <= port.id) by_id_.resize(port.id + std::size_t{1});
  auto& [queues, to_lane] = by_id_[port.id];
  assert(queues.empty() || port.queue == queues.back()->view.queue + 1);
  const auto lane = static_cast<std::uint8_t>(queues.size());
  assert(lane < to_lane.size());
  auto& state = queues.emplace_back(std::make_unique<PortState>(port, lane, backlog_max_));
  if (lane == 0) to_lane.fill(state.get());  // also for lanes that have no queue here
  to_lane[lane] = state.get();
  if (fan_out_ != 0) state->kept.reserve(limits::kBurst);
  using Direction = FaultInjector::Direction;
  if (faults_.any() && faults_.receiving)
    state->rx_faults =
        std::make_unique<FaultInjector>(faults_, port.id, Direction::kReceiving, payloads_);
  if (faults_.any() && faults_.sending)
    state->tx.inject(
        std::make_unique<FaultInjector>(faults_, port.id, Direction::kSending, payloads_));
  polled_.push_back(state.get());
  state->tx.capture(capture_.get());
  if (!port.off_machine) return;
  network_.push_back(state.get());
  state->view.address.groups = groups_;
  if (lane != 0) return;
  state->igmp = std::make_unique<Igmp>(seed_of(port.address.mac));
  if (groups_.empty()) return;
  state->igmp->set_groups(groups_);
  igmp_due_ = state->igmp->next_time();  // at once
}

void DatagramIo::capture(std::shared_ptr<Capture> capture) {
  capture_ = std::move(capture);
  for (PortState* port : polled_) port->tx.capture(capture_.get());
}

void DatagramIo::remove_port(std::uint16_t port_id) {
  for (const auto& port : queues_of(port_id)) {
    counters_.tx_port_removed += port->tx.backlog();
    std::erase(polled_, port.get());
    std::erase(network_, port.get());
  }
  if (port_id < by_id_.size()) by_id_[port_id] = {};
}

Buffer DatagramIo::allocate(std::size_t size) {
  Buffer buffer = payloads_.allocate(size);
  if (!buffer) ++counters_.pool_empty;
  return buffer;
}

void DatagramIo::flush() {
  left_backlog_ = false;
  for (PortState* port : polled_) {
    port->tx.flush(counters_);
    left_backlog_ |= port->tx.backlog() != 0;
  }
}

bool DatagramIo::drain(Duration longest) {
  const Time deadline = after(now(), longest);
  for (flush(); has_backlog(); flush()) {
    if (now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

bool DatagramIo::await_reading(std::uint16_t port_id, std::uint32_t ipv4, Duration longest) {
  const auto queues = queues_of(port_id);
  for (const auto& port : queues) port->arp_answers = 0;
  const auto silent = [&] {
    return std::any_of(queues.begin(), queues.end(),
                       [](const auto& port) { return port->arp_answers == 0; });
  };
  const Time deadline = after(now(), longest);
  for (Time ask_due{}; queues.empty() || silent();) {
    const Time time = now();
    if (queues.empty() || time >= deadline) return false;
    if (time >= ask_due) {
      for (const auto& port : queues)
        if (port->arp_answers == 0) ask_for(*port, ipv4);
      ask_due = after(time, Neighbours::kRequestInterval);
    }
    for (const auto& port : queues) port->tx.flush(counters_);
    if (receive([](const Endpoint&, const Buffer&) {}) == 0) std::this_thread::yield();
  }
  return true;
}

void DatagramIo::set_link(std::uint16_t port_id, bool up) {
  for (const auto& port : queues_of(port_id)) {
    port->tx.set_link(up, counters_);
    if (!up || !port->igmp || groups_.empty()) continue;
    port->igmp->report_again();
    igmp_due_ = port->igmp->next_time();  // at once
  }
}

bool DatagramIo::has_backlog() const {
  return std::any_of(polled_.begin(), polled_.end(),
                     [](const PortState* port) { return port->tx.backlog() != 0; });
}

std::size_t DatagramIo::backlog(std::uint16_t port_id) const {
  std::size_t frames = 0;
  for (const auto& port : queues_of(port_id)) frames += port->tx.backlog();
  return frames;
}

// --- receiving ---------------------------------------------------------------------------------

bool DatagramIo::tells() const {
  return !polled_.empty() && std::all_of(polled_.begin(), polled_.end(), [](const PortState* port) {
    return port->view.rx_event >= 0 && !port->rx_faults;
  });
}

bool DatagramIo::arm(RxEvents& events) {
  const auto add = [&](const PortState* port) { return events.add(port->view.rx_event); };
  if (!tells() || !std::all_of(polled_.begin(), polled_.end(), add)) {
    events.clear();
    return false;
  }
  events.clear_past();  // another receive finds the frames that came before
  for (const PortState* port : polled_) rte_eth_dev_rx_intr_enable(port->view.id, port->view.queue);
  armed_ = true;
  // The peer checks this request after it has published a frame. So we first ask, and then look for
  // frames.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

void DatagramIo::disarm() {
  for (const PortState* port : polled_)
    if (port->view.rx_event >= 0) rte_eth_dev_rx_intr_disable(port->view.id, port->view.queue);
  armed_ = false;
}

bool DatagramIo::has_room_for_answers(const PortState& port) const {
  const auto fits = [&](const PortState& p) { return p.tx.backlog() + fan_out_ <= backlog_max_; };
  return fits(port) && std::all_of(network_.begin(), network_.end(), [&](const PortState* other) {
           return fits(*other) || !other->tx.moves();
         });
}

void DatagramIo::keep_rest(PortState& port, std::size_t done) {
  assert(port.kept.empty());  // so there is never more than a burst
  for (; done < batch_.count; ++done) port.kept.push_back(std::move(batch_.datagrams[done]));
}

std::size_t DatagramIo::poll(PortState& port) {
  batch_.count = 0;
  if (!port.kept.empty()) {
    std::move(port.kept.begin(), port.kept.end(), batch_.datagrams.begin());
    batch_.count = port.kept.size();
    port.kept.clear();
    return batch_.count;
  }
  std::array<rte_mbuf*, limits::kBurst> frames;
  const std::size_t n = fetch(port, frames);
  for (std::size_t i = 0; i < n; ++i) rte_prefetch0(rte_pktmbuf_mtod(frames[i], void*));
  for (std::size_t i = 0; i < n; ++i) take_frame(port, frames[i]);
  return n;
}

std::size_t DatagramIo::fetch(PortState& port, std::span<rte_mbuf*, limits::kBurst> frames) {
  const PeerMemoryUse use(port.view.id, port.view.queue);
  const auto burst = [&] {
    const std::size_t n = rte_eth_rx_burst(port.view.id, port.view.queue, frames.data(),
                                           std::uint16_t{limits::kBurst});
    counters_.rx_frames += n;
    if (capture_ && n != 0) capture_->received(std::span(frames).first(n));
    return n;
  };
  if (!port.rx_faults) return burst();
  if (port.rx_faults->ready() < limits::kBurst) {
    const std::size_t n = burst();
    for (std::size_t i = 0; i < n; ++i) port.rx_faults->take(frames[i], counters_);
  }
  return port.rx_faults->pass_on(frames);
}

void DatagramIo::take_frame(PortState& port, rte_mbuf* frame) {
  // Some NICs use of each buffer only a power of two; there is room for the rest behind it.
  if (frame->nb_segs > 1 && rte_pktmbuf_linearize(frame) != 0) {
    ++counters_.rx_multi_segment;
    rte_pktmbuf_free(frame);
  } else if (!take_off_tag(port.view.vlan, frame)) {
    ++counters_.rx_other_vlan;
    rte_pktmbuf_free(frame);
  } else {
    take_untagged(port, frame);
  }
}

void DatagramIo::take_untagged(PortState& port, rte_mbuf* frame) {
  Buffer buffer = adopt(frame);  // frees the frame wherever it is dropped
  const auto bytes = buffer.bytes();
  ParsedFrame parsed = parse_frame(bytes, port.view.address, verified_by_port(frame));
  if (parsed.verdict == FrameVerdict::kArp) return take_arp(port, bytes);
  if (parsed.verdict == FrameVerdict::kEcho) return take_echo(port, std::move(buffer));
  if (parsed.verdict == FrameVerdict::kIgmp) return take_igmp(port, bytes);
  if (parsed.verdict != FrameVerdict::kDatagram) {
    ++(counters_.*drop_counter(parsed.verdict));
    return;
  }
  if (!listened_.test(parsed.from.local_udp_port))
    return hand_over(port, parsed.from.local_udp_port, std::move(buffer));
  ++counters_.rx_datagrams;
  counters_.rx_bytes += parsed.payload_bytes;
  counters_.rx_group_datagrams += parsed.to_group;
  release(buffer);
  frame->data_off = static_cast<std::uint16_t>(frame->data_off + kHeaderBytes);
  frame->data_len = static_cast<std::uint16_t>(parsed.payload_bytes);
  frame->pkt_len = static_cast<std::uint32_t>(parsed.payload_bytes);
  frame->ol_flags = 0;  // the flags of a received frame must not affect what is sent
  parsed.from.port_id = port.view.id;
  parsed.from.lane = port.lane;
  parsed.from.off_machine = port.view.off_machine;
  batch_.datagrams[batch_.count++] = {parsed.from, adopt(frame)};
}

void DatagramIo::hand_over(PortState& port, std::uint16_t udp_port, Buffer frame) {
  const bool may = others_ != nullptr && port.view.off_machine;
  const auto to = may ? others_->listener(udp_port) : std::nullopt;
  if (!to) {
    ++counters_.rx_port_closed;
    return;
  }
  rte_mbuf* const mbuf = release(frame);
  mbuf->port = port.view.id;
  if (others_->give(*to, mbuf)) {
    ++counters_.rx_handed_over;
    return;
  }
  ++counters_.rx_hand_over_full;
  rte_pktmbuf_free(mbuf);
}

/// Copies each into a buffer of our own, as what a lane keeps must not belong to another lane.
std::size_t DatagramIo::take_handed_over() {
  std::array<rte_mbuf*, limits::kBurst> frames;
  const std::size_t room = frames.size() - handed_over_.size();
  const std::size_t n = others_->take(lane_, std::span(frames).first(room));
  for (std::size_t i = 0; i < n; ++i) {
    PortState* const port = find(frames[i]->port);
    const Buffer theirs = adopt(frames[i]);
    Buffer ours = allocate(theirs.bytes().size());
    if (port == nullptr || !ours) {
      ++counters_.rx_hand_over_full;
      continue;
    }
    std::memcpy(ours.writable().data(), theirs.bytes().data(), theirs.bytes().size());
    rte_mbuf* const copy = release(ours);
    copy->ol_flags = frames[i]->ol_flags & kVerdicts;
    batch_.count = 0;
    take_untagged(*port, copy);
    if (batch_.count != 0) handed_over_.push_back(std::move(batch_.datagrams[0]));
  }
  return n;
}

/// A port that accepts nothing must not delay the others.
DatagramIo::Pending DatagramIo::what_to_do(const Datagram& datagram) const {
  const PortState* const port = find(datagram.from.port_id);
  if (port == nullptr) return Pending::kDrop;
  if (has_room(*port)) return Pending::kHandle;
  return port->tx.moves() ? Pending::kKeep : Pending::kDrop;
}

/// If there are several queues, the first one sends requests, and the answer may come to any of
/// them.
void DatagramIo::take_arp(PortState& port, std::span<const std::byte> frame) {
  const LocalAddress& us = port.view.address;
  const std::optional<Arp> arp = parse_arp(frame);
  if (!arp) {
    ++counters_.arp_ignored;
    return;
  }
  if (arp->operation == ArpOperation::kReply) ++port.arp_answers;
  const bool learned = find(port.view.id)->neighbours.learn(arp->sender_ipv4, arp->sender_mac);
  if (learned) ++counters_.arp_learned;
  if (arp->operation == ArpOperation::kRequest && arp->target_ipv4 == us.ipv4) {
    const Arp reply{ArpOperation::kReply, us.mac, us.ipv4, arp->sender_mac, arp->sender_ipv4};
    send_bytes(port, make_arp(reply, arp->sender_mac));
    ++counters_.arp_replies_sent;
  } else if (!learned) {
    ++counters_.arp_ignored;
  }
}

/// The reply goes in the request's buffer.
void DatagramIo::take_echo(PortState& port, Buffer request) {
  const std::size_t bytes = to_echo_reply(request.writable());
  rte_mbuf* const frame = release(request);
  rte_pktmbuf_trim(frame, static_cast<std::uint16_t>(frame->data_len - bytes));
  frame->ol_flags = 0;
  push(port, frame);
  ++counters_.echoes_answered;
}

void DatagramIo::set_groups(std::span<const std::uint32_t> groups, Time now) {
  assert(groups.size() <= kMaxGroups);
  if (std::ranges::equal(groups, groups_)) return;
  groups_.assign(groups.begin(), groups.end());
  for (PortState* port : network_) {
    port->view.address.groups = groups_;
    if (port->igmp) port->igmp->set_groups(groups_);
  }
  turn_ = now;
  send_igmp();
}

/// To whichever queue of the port it came.
void DatagramIo::take_igmp(const PortState& port, std::span<const std::byte> frame) {
  Igmp& igmp = *find(port.view.id)->igmp;
  switch (igmp.take(igmp_message(frame), turn_)) {
    case Igmp::Outcome::kQuery:
      ++counters_.igmp_queries;
      igmp_due_ = std::min(igmp_due_, igmp.next_time());
      break;
    case Igmp::Outcome::kReport:
      ++counters_.igmp_reports_heard;
      break;
    case Igmp::Outcome::kIgnored:
      ++counters_.igmp_ignored;
      break;
  }
}

/// Sent as payloads, as reports of many groups do not fit into the buffers for headers.
void DatagramIo::send_igmp() {
  igmp_due_ = kNever;
  for (PortState* port : network_) {
    if (!port->igmp) continue;
    while (const auto message = port->igmp->next_message(turn_)) {
      Buffer frame = allocate(kIgmpHeaderBytes + message->size);
      if (!frame) continue;  // a lost report is repeated anyway
      write_igmp(frame.writable(), port->view.address, message->to, message->bytes());
      push(*port, release(frame));
      ++counters_.igmp_reports_sent;
    }
    igmp_due_ = std::min(igmp_due_, port->igmp->next_time());
  }
}

std::optional<MacAddress> DatagramIo::resolve(std::uint16_t port_id, std::uint32_t ipv4, Time now) {
  PortState* port = find(port_id);
  if (!port) return std::nullopt;
  const std::uint32_t hop = next_hop(port->view, ipv4);
  const Neighbours::Answer answer = port->neighbours.resolve(hop, now);
  if (answer.table_full) ++counters_.arp_table_full;
  if (answer.ask) ask_for(*port, hop);
  return answer.mac;
}

std::optional<MacAddress> DatagramIo::resolve_again(std::uint16_t port_id, std::uint32_t ipv4,
                                                    Time now, std::size_t turn) {
  if (PortState* port = find(port_id)) {
    const std::uint32_t hop = next_hop(port->view, ipv4);
    if (port->neighbours.ask_again(hop, now)) ask_for(*port, hop);
  }
  const auto last = resolve(port_id, ipv4, now);
  if (!last || turn == 0) return last;
  const auto macs = claimants(port_id, ipv4);
  return macs[turn % macs.size()];
}

std::vector<MacAddress> DatagramIo::claimants(std::uint16_t port_id, std::uint32_t ipv4) const {
  const PortState* port = find(port_id);
  if (!port) return {};
  return port->neighbours.claimants(next_hop(port->view, ipv4));
}

void DatagramIo::ask_for(PortState& port, std::uint32_t ipv4) {
  const LocalAddress& us = port.view.address;
  const Arp request{ArpOperation::kRequest, us.mac, us.ipv4, {}, ipv4};
  send_bytes(port, make_arp(request, kBroadcastMac));
  ++counters_.arp_requests_sent;
}

// --- sending -----------------------------------------------------------------------------------

void DatagramIo::send(const Endpoint& to, Buffer payload) {
  const bool may_prepend = payload.references() == 1;
  send(to, std::move(payload), may_prepend);
}

Buffer DatagramIo::send_and_keep(const Endpoint& to, Buffer payload) {
  Buffer kept = payload.share();
  send(to, std::move(payload), true);
  return kept;
}

/// Queues a frame, with a tag if the port has a VLAN. It is inline, as it is called for every
/// packet.
inline void DatagramIo::push(PortState& port, rte_mbuf* frame) {
  if (port.view.vlan != kNoVlan) tag(port, frame);
  port.tx.push(frame, counters_);
}

void DatagramIo::tag(const PortState& port, rte_mbuf* frame) {
  char* const begin = rte_pktmbuf_prepend(frame, std::uint16_t{kTagBytes});
  assert(begin != nullptr);
  put_in_tag({reinterpret_cast<std::byte*>(begin), frame->data_len}, port.view.vlan);
}

void DatagramIo::send(const Endpoint& to, Buffer payload, bool may_prepend) {
  if (!payload) return;
  PortState* port = find(to.port_id, to.lane);
  if (!port) {
    ++counters_.tx_unknown_port;
    return;
  }
  const std::size_t size = payload.bytes().size();
  if (size + kIpv4Bytes + kUdpBytes > port->view.mtu) {
    ++counters_.tx_too_long;
    return;
  }
  rte_mbuf* mbuf = release(payload);
  rte_mbuf* frame = nullptr;
  if (may_prepend && rte_pktmbuf_headroom(mbuf) >= kHeaderBytes + kTagBytes)
    frame = frame_in_place(*port, to, mbuf);
  else if (port->view.chain)
    frame = frame_chained(*port, to, mbuf);
  else
    frame = frame_copied(*port, to, mbuf);
  if (!frame) {
    ++counters_.pool_empty;
    return;
  }
  ++port->ip_id;
  ++counters_.tx_datagrams;
  counters_.tx_bytes += size;
  push(*port, frame);
}

rte_mbuf* DatagramIo::frame_in_place(PortState& port, const Endpoint& to, rte_mbuf* payload) {
  const auto bytes = data_of(payload);
  rte_pktmbuf_prepend(payload, static_cast<std::uint16_t>(kHeaderBytes));
  write_frame_headers(port.view, port.ip_id, to, bytes, payload);
  return payload;
}

rte_mbuf* DatagramIo::frame_chained(PortState& port, const Endpoint& to, rte_mbuf* payload) {
  rte_mbuf* header = rte_pktmbuf_alloc(headers_.handle());
  if (!header) {
    rte_pktmbuf_free_seg(payload);
    return nullptr;
  }
  rte_pktmbuf_append(header, static_cast<std::uint16_t>(kHeaderBytes));
  write_frame_headers(port.view, port.ip_id, to, data_of(payload), header);
  header->next = payload;
  header->nb_segs = 2;
  header->pkt_len += payload->data_len;
  ++counters_.tx_chained;
  return header;
}

rte_mbuf* DatagramIo::frame_copied(PortState& port, const Endpoint& to, rte_mbuf* payload) {
  rte_mbuf* frame = rte_pktmbuf_alloc(payloads_.handle());
  const auto bytes = data_of(payload);
  char* out =
      frame ? rte_pktmbuf_append(frame, static_cast<std::uint16_t>(kHeaderBytes + bytes.size()))
            : nullptr;
  if (out) {
    std::memcpy(out + kHeaderBytes, bytes.data(), bytes.size());
    write_frame_headers(port.view, port.ip_id, to, bytes, frame);
    ++counters_.tx_linearised;
  } else {
    rte_pktmbuf_free(frame);
    frame = nullptr;
  }
  rte_pktmbuf_free_seg(payload);
  return frame;
}

void DatagramIo::send_frame(std::uint16_t port_id, Buffer frame) {
  if (!frame) return;
  if (PortState* port = find(port_id))
    port->tx.push(release(frame), counters_);
  else
    ++counters_.tx_unknown_port;
}

void DatagramIo::send_bytes(PortState& port, std::span<const std::byte> frame) {
  rte_mbuf* mbuf = rte_pktmbuf_alloc(headers_.handle());
  if (!mbuf) {
    ++counters_.pool_empty;
    return;
  }
  std::memcpy(rte_pktmbuf_append(mbuf, static_cast<std::uint16_t>(frame.size())), frame.data(),
              frame.size());
  push(port, mbuf);
}

}  // namespace sluice::net
