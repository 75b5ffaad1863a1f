// UDP over a set of ports, for one polling thread: a lane of the aggregator or a worker's progress
// loop. It strips and writes the headers, answers ARP, pings and IGMP, and keeps what a port cannot
// take.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/limits.hpp"
#include "common/base/source_ports.hpp"
#include "common/base/time.hpp"
#include "common/net/buffer.hpp"
#include "common/net/fault_plan.hpp"
#include "common/net/hand_over.hpp"
#include "common/net/io_counters.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"
#include "common/net/rx_events.hpp"

namespace sluice::net {

class Capture;

/// One thread uses it; it shares nothing with another but the pools.
class DatagramIo final : public KeepingSink {
 public:
  /// Payloads come from `payloads`, the headers of shared payloads from `headers` (0 payload bytes
  /// will do). A port that refuses frames keeps up to `backlog_max` waiting, 64 .. 65535. Where the
  /// handler may answer one datagram with many, `fan_out` (0 .. backlog_max) says with how many: a
  /// port is not received from while it has no room for so many answers, so that none is dropped;
  /// nor while a port that leaves the machine has none, and moves: answers may go there, too. A
  /// local peer that takes little is nobody's reason to wait but its own.
  /// Of two ends that answer each other one at most may do so: else each might wait for the other.
  DatagramIo(BufferPool& payloads, BufferPool& headers,
             std::size_t backlog_max = limits::kMaxBacklog, std::size_t fan_out = 0);
  ~DatagramIo();

  /// Puts faults into the traffic of the ports that are added from now on.
  void inject_faults(const FaultPlan& plan) { faults_ = plan; }

  /// Begins to poll a queue of a port: one of the queues, or all one after the other. Of several,
  /// queue l is the way to lane l of whoever is at the other end. Not from a handler.
  void add_port(const PortView& port);

  /// Lets go of a port: what is still queued for it is dropped and counted. Not from a handler.
  void remove_port(std::uint16_t port_id);

  /// Datagrams to this UDP port reach the handler from now on; all others are dropped.
  void listen(std::uint16_t udp_port) { listened_.set(udp_port); }

  /// The same of all ports from which a worker may be told to send to lane `lane`.
  void listen_to_source_ports(std::size_t lane) {
    for (std::size_t i = 0; i < kSourcePortsOfLane; ++i) listened_.set(first_source_port(lane) + i);
  }

  /// From now on, until null comes, frames are captured as ports bring and take them.
  void capture(std::shared_ptr<Capture> capture);

  /// From now on this is lane `lane` of several: what comes over a network for others goes to them,
  /// and what comes there for this one is received here. (Local peers have a queue for each lane.)
  /// `others` must outlive this object.
  void join(HandOver& others, std::size_t lane) {
    others_ = &others;
    lane_ = lane;
  }

  /// From now on what comes to these multicast groups is received, too, at every port that leaves
  /// the machine: those that are here and those that are added later. Switches and routers are told
  /// what changed, by IGMP. At most kMaxGroups, in host byte order, none of 224.0.0.0/24. Not from
  /// a handler; cheap when nothing changed.
  void set_groups(std::span<const std::uint32_t> groups, Time now);

  /// Every turn, where groups may be set: queues the IGMP reports that are due.
  void on_time(Time now) {
    turn_ = now;
    if (now >= igmp_due_) send_igmp();
  }

  /// A payload to be filled, of exactly `size` bytes; empty when the pool is empty or its buffers
  /// are smaller.
  Buffer allocate(std::size_t size) override;

  /// Queues the payload for its way to `to`, from `to.local_udp_port` of `to.port_id`. If other
  /// references to it exist it is sent behind a header of its own, and its bytes must not change
  /// as long as they do.
  void send(const Endpoint& to, Buffer payload) override;

  /// The same with a payload's only reference; returns another, to read from: it is not to be sent.
  Buffer send_and_keep(const Endpoint& to, Buffer payload) override;

  /// Queues a complete Ethernet frame as it is: no tag is put on it.
  void send_frame(std::uint16_t port_id, Buffer frame);

  /// Polls every port once and calls `handler(const Endpoint& from, Buffer payload)` for each
  /// datagram; it may send, not receive. Returns the number of frames received, of whatever kind.
  template <class Handler>
  std::size_t receive(Handler&& handler) {
    std::size_t frames = 0;
    held_back_ = false;
    if (others_ != nullptr) frames += receive_handed_over(handler);
    for (PortState* port : polled_) {
      if (!has_room(*port)) {
        held_back_ = true;
        continue;
      }
      frames += poll(*port);
      std::size_t done = 0;
      while (done < batch_.count && has_room(*port)) {
        Datagram& next = batch_.datagrams[done++];
        handler(std::as_const(next.from), std::move(next.payload));
      }
      if (done < batch_.count) {
        held_back_ = true;
        keep_rest(*port, done);
      }
    }
    if (armed_ && frames != 0) disarm();
    return frames;
  }

  /// Whether every port can tell of its next frame.
  bool tells() const;

  /// Asks every port to tell of its next frame, and adds what will become readable then to
  /// `events`. False, and nothing is added, if one of them cannot tell. Receive once more before
  /// you wait: a frame may have come before the asking. Holds until frames are received.
  bool arm(RxEvents& events);

  /// Offers everything queued to the ports. Call it once per turn of the loop.
  void flush();

  /// The last flush: again until the ports have taken everything, `longest` at most. Whether they
  /// have.
  bool drain(Duration longest);

  /// Before a port is closed, which takes with it what its peer has not read: until `ipv4`, through
  /// that port, has read all that was sent there, `longest` at most. It is asked by ARP, behind the
  /// rest on each queue. Whether it has answered. What else comes meanwhile is dropped.
  bool await_reading(std::uint16_t port_id, std::uint32_t ipv4, Duration longest);

  /// Tells whether somebody is at the other end of a port's link. While nobody is, what is sent
  /// there is dropped and counted, and so is what was still queued. A new port counts as up.
  void set_link(std::uint16_t port_id, bool up);

  /// Whether the last receive() let a port wait, as there was no room for answers.
  bool held_back() const { return held_back_; }
  /// Whether the last flush() left frames that a port did not take. Costs nothing.
  bool left_backlog() const { return left_backlog_; }

  /// Whether a port did not take all yet.
  bool has_backlog() const;
  /// Frames that a port did not take yet.
  std::size_t backlog(std::uint16_t port_id) const;

  /// The Ethernet address that leads to `ipv4` through a port. Unknown ones are asked for, by ARP
  /// and at most ten times a second: call again until it is there.
  std::optional<MacAddress> resolve(std::uint16_t port_id, std::uint32_t ipv4, Time now);

  /// As resolve, and asks also if the address is known: a peer that fell silent may have been
  /// replaced by another machine. Gives what was known until that one has answered. Where several
  /// claim the address, `turn` takes one after the other, from the last one on.
  std::optional<MacAddress> resolve_again(std::uint16_t port_id, std::uint32_t ipv4, Time now,
                                          std::size_t turn = 0);

  /// All who lately said by ARP that they lead to `ipv4`, a few at most, the last one first.
  std::vector<MacAddress> claimants(std::uint16_t port_id, std::uint32_t ipv4) const;

  const IoCounters& counters() const { return counters_; }

 private:
  struct PortState;
  struct Datagram {
    Endpoint from;
    Buffer payload;
  };
  struct Batch {
    std::array<Datagram, limits::kBurst> datagrams;
    std::size_t count = 0;
  };

  void disarm();
  bool has_room(const PortState& port) const { return fan_out_ == 0 || has_room_for_answers(port); }
  bool has_room_for_answers(const PortState& port) const;
  std::size_t poll(PortState& port);
  void keep_rest(PortState& port, std::size_t done);
  template <class Handler>
  std::size_t receive_handed_over(Handler&& handler) {
    const std::size_t frames = take_handed_over();
    std::size_t kept = 0;
    for (Datagram& next : handed_over_) {
      switch (what_to_do(next)) {
        case Pending::kHandle:
          handler(std::as_const(next.from), std::move(next.payload));
          break;
        case Pending::kKeep:
          std::swap(handed_over_[kept++], next);
          break;
        case Pending::kDrop:
          ++counters_.rx_hand_over_full;
          break;
      }
    }
    handed_over_.resize(kept);
    return frames;
  }
  enum class Pending { kHandle, kKeep, kDrop };
  Pending what_to_do(const Datagram& datagram) const;
  std::size_t take_handed_over();
  std::size_t fetch(PortState& port, std::span<rte_mbuf*, limits::kBurst> frames);
  void take_frame(PortState& port, rte_mbuf* frame);
  void take_untagged(PortState& port, rte_mbuf* frame);
  void hand_over(PortState& port, std::uint16_t udp_port, Buffer frame);
  void take_echo(PortState& port, Buffer request);
  void take_arp(PortState& port, std::span<const std::byte> frame);
  void take_igmp(const PortState& port, std::span<const std::byte> frame);
  void send_igmp();
  void ask_for(PortState& port, std::uint32_t ipv4);
  void send(const Endpoint& to, Buffer payload, bool may_prepend);
  void send_bytes(PortState& port, std::span<const std::byte> frame);
  void push(PortState& port, rte_mbuf* frame);
  static void tag(const PortState& port, rte_mbuf* frame);
  rte_mbuf* frame_in_place(PortState& port, const Endpoint& to, rte_mbuf* payload);
  rte_mbuf* frame_chained(PortState& port, const Endpoint& to, rte_mbuf* payload);
  rte_mbuf* frame_copied(PortState& port, const Endpoint& to, rte_mbuf* payload);
  PortState* find(std::uint16_t port_id, std::uint8_t lane = 0) const;
  std::span<const std::unique_ptr<PortState>> queues_of(std::uint16_t port_id) const;

  BufferPool& payloads_;
  BufferPool& headers_;
  std::size_t backlog_max_;
  std::size_t fan_out_;
  std::bitset<65536> listened_;
  struct Queues {
    std::vector<std::unique_ptr<PortState>> all;
    std::array<PortState*, limits::kMaxLanes> to_lane{};  // null: there is no such port
  };
  std::vector<Queues> by_id_;
  std::vector<PortState*> polled_;
  std::vector<PortState*> network_;  // of these, what leaves the machine
  std::vector<std::uint32_t> groups_;
  Time turn_{};             // when the last turn began
  Time igmp_due_ = kNever;  // the next report, of whatever port
  FaultPlan faults_;
  std::shared_ptr<Capture> capture_;  // mostly none
  HandOver* others_ = nullptr;
  std::size_t lane_ = 0;               // among these
  std::vector<Datagram> handed_over_;  // a burst at most: some wait for room for their answers
  Batch batch_;                        // of the poll under way
  bool armed_ = false;                 // ports were asked to tell of frames
  bool held_back_ = false;
  bool left_backlog_ = false;
  IoCounters counters_;
};

}  // namespace sluice::net
