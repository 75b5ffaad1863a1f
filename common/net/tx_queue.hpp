// Frames on their way to one transmit queue of a port, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/net/fault_injection.hpp"
#include "common/net/io_counters.hpp"

struct rte_mbuf;

namespace sluice::net {

class Capture;

/// Frames that the port does not accept stay queued, up to a limit, and go first the next time:
/// nothing is sent twice or overtaken. A full queue drops new frames and counts them.
class TxQueue {
 public:
  TxQueue(std::uint16_t port_id, std::uint16_t queue, std::size_t backlog_max);
  ~TxQueue();
  TxQueue(const TxQueue&) = delete;
  TxQueue& operator=(const TxQueue&) = delete;

  /// Takes over `frame`.
  void push(rte_mbuf* frame, IoCounters& counters);

  /// Offers everything that is queued to the port once.
  void flush(IoCounters& counters);

  /// Lets frames pass through it on their way into the queue, from now on.
  void inject(std::unique_ptr<FaultInjector> faults);

  /// Captures frames when the port accepts them; null ends that.
  void capture(Capture* capture) { capture_ = capture; }

  /// While the link is down, what is queued and what is pushed is dropped and counted: the next
  /// peer at the other end has no use for old frames.
  void set_link(bool up, IoCounters& counters);

  std::size_t backlog() const { return end_ - begin_; }

  /// Whether the port has accepted a frame of those that were offered recently.
  bool moves() const { return offers_in_vain_ < kOffersInVainMax; }

 private:
  // One offer a turn: about a millisecond of a polling loop.
  static constexpr unsigned kOffersInVainMax = 1000;

  void drop_all();
  void detour(rte_mbuf* frame, IoCounters& counters);
  void take_from_faults(IoCounters& counters);
  void enqueue(rte_mbuf* frame, IoCounters& counters);
  void offer(IoCounters& counters);

  std::uint16_t port_id_;
  std::uint16_t queue_;
  // [begin_, end_) of frames_ is queued; compacted when the end is reached.
  std::vector<rte_mbuf*> frames_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  unsigned offers_in_vain_ = 0;  // consecutive offers of which the port accepted nothing
  bool link_up_ = true;
  Capture* capture_ = nullptr;             // usually null
  std::unique_ptr<FaultInjector> faults_;  // the link is up, and no faults are injected
  // The link is up, and no faults are injected.
  bool plain_ = true;
};

}  // namespace sluice::net
