// Frames on their way into one transmit queue of a port, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/net/io_counters.hpp"

struct rte_mbuf;

namespace sluice::net {

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

  std::size_t backlog() const { return end_ - begin_; }

 private:
  std::uint16_t port_id_;
  std::uint16_t queue_;
  // [begin_, end_) of frames_ is queued; compacted when the end is reached.
  std::vector<rte_mbuf*> frames_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace sluice::net
