// Frames on their way into one transmit queue of a port, in order.
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

/// What the port does not take stays queued, up to a bound, and goes first the next time: nothing
/// is sent twice or overtaken. A full queue drops what comes new and counts it.
class TxQueue {
 public:
  TxQueue(std::uint16_t port_id, std::uint16_t queue, std::size_t backlog_max);
  ~TxQueue();
  TxQueue(const TxQueue&) = delete;
  TxQueue& operator=(const TxQueue&) = delete;

  /// Takes over `frame`.
  void push(rte_mbuf* frame, IoCounters& counters);

  /// Offers everything queued to the port once.
  void flush(IoCounters& counters);

  /// From now on frames pass through it on their way into the queue.
  void inject(std::unique_ptr<FaultInjector> faults);

  /// From now on, until null comes, frames are captured when the port takes them.
  void capture(Capture* capture) { capture_ = capture; }

  /// While the link is down, what is queued and what is pushed is dropped and counted: whoever
  /// comes next at the other end has no use for old frames.
  void set_link(bool up, IoCounters& counters);

  std::size_t backlog() const { return end_ - begin_; }

  /// Whether the port took a frame, of those that were offered lately.
  bool moves() const { return offers_in_vain_ < kOffersInVainMax; }

 private:
  static constexpr unsigned kOffersInVainMax = 1000;  // one a turn: a millisecond of a polling loop

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
  unsigned offers_in_vain_ = 0;  // one after the other
  bool link_up_ = true;
  Capture* capture_ = nullptr;             // mostly none
  std::unique_ptr<FaultInjector> faults_;  // the same
  bool plain_ = true;                      // the link is up and there are none
};

}  // namespace sluice::net
