#include "common/net/tx_queue.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "common/base/limits.hpp"
#include "common/net/capture.hpp"
#include "common/net/peer_memory.hpp"

namespace sluice::net {

TxQueue::TxQueue(std::uint16_t port_id, std::uint16_t queue, std::size_t backlog_max)
    : port_id_(port_id), queue_(queue), frames_(backlog_max) {
  assert(port_id < limits::kMaxPortIds);
}

TxQueue::~TxQueue() {
  drop_all();
}

void TxQueue::drop_all() {
  for (std::size_t i = begin_; i < end_; ++i) rte_pktmbuf_free(frames_[i]);
  begin_ = end_ = 0;
}

void TxQueue::set_link(bool up, IoCounters& counters) {
  link_up_ = up;
  plain_ = up && !faults_;
  if (up) return;
  counters.tx_link_down += backlog();
  drop_all();
}

void TxQueue::inject(std::unique_ptr<FaultInjector> faults) {
  faults_ = std::move(faults);
  plain_ = false;
}

void TxQueue::push(rte_mbuf* frame, IoCounters& counters) {
  if (plain_)
    enqueue(frame, counters);
  else
    detour(frame, counters);
}

void TxQueue::detour(rte_mbuf* frame, IoCounters& counters) {
  if (!link_up_) {
    ++counters.tx_link_down;
    rte_pktmbuf_free(frame);
  } else {
    faults_->take(frame, counters);
    take_from_faults(counters);
  }
}

void TxQueue::take_from_faults(IoCounters& counters) {
  std::array<rte_mbuf*, limits::kBurst> frames;
  while (const std::size_t count = faults_->pass_on(frames))
    for (std::size_t i = 0; i < count; ++i) enqueue(frames[i], counters);
}

void TxQueue::enqueue(rte_mbuf* frame, IoCounters& counters) {
  if (end_ == frames_.size() && begin_ > 0) {
    std::copy(frames_.begin() + static_cast<std::ptrdiff_t>(begin_), frames_.end(),
              frames_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == frames_.size()) {
    ++counters.tx_backlog_full;
    rte_pktmbuf_free(frame);
    return;
  }
  frames_[end_++] = frame;
  if (backlog() % limits::kBurst == 0) offer(counters);
}

void TxQueue::flush(IoCounters& counters) {
  if (faults_ && link_up_) take_from_faults(counters);
  offer(counters);
}

void TxQueue::offer(IoCounters& counters) {
  const PeerMemoryUse use(port_id_, queue_);
  while (begin_ < end_) {
    const auto count = static_cast<std::uint16_t>(std::min(end_ - begin_, limits::kBurst));
    const std::uint16_t sent =
        capture_ == nullptr
            ? rte_eth_tx_burst(port_id_, queue_, &frames_[begin_], count)
            : capture_->send(port_id_, queue_, std::span(frames_).subspan(begin_, count));
    counters.tx_frames += sent;
    assert(sent <= count);
    begin_ += sent;
    offers_in_vain_ = sent != 0 ? 0 : std::min(offers_in_vain_ + 1, kOffersInVainMax);
    if (sent < count) {
      ++counters.tx_partial_bursts;
      return;
    }
  }
  begin_ = end_ = 0;
}

}  // namespace sluice::net
