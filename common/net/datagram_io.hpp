// UDP over a set of ports, for one polling thread: a lane of the aggregator or a worker's progress
// loop. It strips and writes headers, answers ARP, pings and IGMP, and keeps what a port cannot
// accept yet.
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

/// Used by one thread. Threads share only the pools.
class DatagramIo final : public KeepingSink {
 public:
  /// Payloads come from `payloads`; the headers of shared payloads come from `headers` (whose
  /// payloads may have 0 bytes). For a port that refuses frames, up to `backlog_max` wait, 64 ..
  /// 65535.
  ///
  /// `fan_out` (0 .. backlog_max) is how many answers the handler may send to one datagram. A port
  /// is not polled while it has no room for so many answers, so that none is dropped. It is also
  /// not polled while a port that leaves the machine has no room, as answers may go there, too;
  /// except if that port accepts nothing any more. A slow local peer only delays itself. Of two
  /// ends that answer each other, at most one may use `fan_out`; otherwise each could wait for the
  /// other.
  DatagramIo(BufferPool& payloads, BufferPool& headers,
             std::size_t backlog_max = limits::kMaxBacklog, std::size_t fan_out = 0);
  ~DatagramIo();

  /// Injects faults into the traffic of ports that are added from now on.
  void inject_faults(const FaultPlan& plan) { faults_ = plan; }

  /// Begins to poll a queue of a port: one of its queues, or all of them one after the other. If
  /// there are several, queue l leads to lane l of the other end. Not to be called by a handler.
  void add_port(const PortView& port);

  /// Removes a port: what is still queued for it is dropped and counted. Not to be called by a
  /// handler.
  void remove_port(std::uint16_t port_id);

  /// Gives datagrams to this UDP port to the handler from now on. All others are dropped.
  void listen(std::uint16_t udp_port) { listened_.set(udp_port); }

  /// Does the same for all ports from which a worker may be asked to send to lane `lane`.
  void listen_to_source_ports(std::size_t lane) {
    for (std::size_t i = 0; i < kSourcePortsOfLane; ++i) listened_.set(first_source_port(lane) + i);
  }

  /// Captures frames as ports receive and accept them; null ends that.
  void capture(std::shared_ptr<Capture> capture);

  /// Makes this lane `lane` of several: datagrams from a network that are for other lanes are given
  /// to them, and those that they give to this one are received here. (Local peers have a queue for
  /// each lane.) `others` must outlive this object.
  void join(HandOver& others, std::size_t lane) {
    others_ = &others;
    lane_ = lane;
  }

  /// Sets the multicast groups that are received, at every port that leaves the machine: those that
  /// are here and those that are added later. Switches and routers learn of changes by IGMP. There
  /// may be kMaxGroups, in host byte order, none of 224.0.0.0/24. Not to be called by a handler. It
  /// is cheap if nothing has changed.
  void set_groups(std::span<const std::uint32_t> groups, Time now);

  /// To be called every turn if groups may be set: queues the IGMP reports that are due.
  void on_time(Time now) {
    turn_ = now;
    if (now >= igmp_due_) send_igmp();
  }

  /// Returns an empty payload of exactly `size` bytes; an empty buffer if the pool is empty or its
  /// buffers are smaller.
  Buffer allocate(std::size_t size) override;

  /// Queues the payload for `to`, from `to.local_udp_port` of `to.port_id`. If there are other
  /// references to it, it is sent behind a separate header, and its bytes must not change as long
  /// as they exist.
  void send(const Endpoint& to, Buffer payload) override;

  /// The same for a payload's only reference. Returns another one, for reading only: it must not be
  /// sent.
  Buffer send_and_keep(const Endpoint& to, Buffer payload) override;

  /// Queues a complete Ethernet frame without changes: it gets no tag.
  void send_frame(std::uint16_t port_id, Buffer frame);

  /// Polls every port once and calls `handler(const Endpoint& from, Buffer payload)` for each
  /// datagram. The handler may send, but not receive. Returns the number of frames of any kind.
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

  /// Whether every port can signal its next frame.
  bool tells() const;

  /// Asks every port to signal its next frame, and adds the descriptors that become readable then
  /// to `events`. Returns false, and adds nothing, if one of them cannot do that. Receive once more
  /// before you wait, as a frame may have come before the request. The request ends when frames are
  /// received.
  bool arm(RxEvents& events);

  /// Offers everything that is queued to the ports. Call it once per turn of the loop.
  void flush();

  /// The last flush: repeats it until the ports have accepted everything, for at most `longest`.
  /// Returns whether they have.
  bool drain(Duration longest);

  /// For use before a port is closed, as data that its peer has not read is lost then. Waits, at
  /// most `longest`, until `ipv4` has read all that was sent through that port: it sends an ARP
  /// request behind the data of each queue. Returns whether the answers came. Other frames that
  /// come meanwhile are dropped.
  bool await_reading(std::uint16_t port_id, std::uint32_t ipv4, Duration longest);

  /// Sets whether there is somebody at the other end of a port's link. While there is not, what is
  /// sent there is dropped and counted, including what was still queued. A new port counts as up.
  void set_link(std::uint16_t port_id, bool up);

  /// Whether the last receive() skipped a port, as there was no room for answers.
  bool held_back() const { return held_back_; }
  /// Whether the last flush() left frames that a port did not accept. Costs nothing.
  bool left_backlog() const { return left_backlog_; }

  /// Whether there is a port that has not accepted everything yet.
  bool has_backlog() const;
  /// How many frames a port has not accepted yet.
  std::size_t backlog(std::uint16_t port_id) const;

  /// The Ethernet address that leads to `ipv4` through a port. An unknown one is asked for by ARP,
  /// at most ten times a second: call again until it is there.
  std::optional<MacAddress> resolve(std::uint16_t port_id, std::uint32_t ipv4, Time now);

  /// As resolve(), but asks even if the address is known: a silent peer may have been replaced by
  /// another machine. Returns the known address until that machine has answered. If several claim
  /// the address, `turn` selects them one after the other, beginning with the last one.
  std::optional<MacAddress> resolve_again(std::uint16_t port_id, std::uint32_t ipv4, Time now,
                                          std::size_t turn = 0);

  /// All that have recently claimed `ipv4` by ARP, a limited number, the last one first.
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
  std::vector<PortState*> network_;  // those that leave the machine
  std::vector<std::uint32_t> groups_;
  Time turn_{};             // when the last turn began
  Time igmp_due_ = kNever;  // the next report of any port
  FaultPlan faults_;
  std::shared_ptr<Capture> capture_;  // usually null
  HandOver* others_ = nullptr;
  std::size_t lane_ = 0;               // this lane's number
  std::vector<Datagram> handed_over_;  // at most a burst; some wait for room for their answers
  Batch batch_;                        // the current poll's
  bool armed_ = false;                 // ports were asked to signal frames
  bool held_back_ = false;
  bool left_backlog_ = false;
  IoCounters counters_;
};

}  // namespace sluice::net
