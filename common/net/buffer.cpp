#include "common/net/buffer.hpp"

#include <cassert>

#include <rte_mbuf.h>

#include "common/base/packet_buffer.hpp"

namespace sluice::net {

static_assert(PacketBuffer<Buffer>);

Buffer Buffer::adopt(rte_mbuf* mbuf) {
  Buffer buffer;
  if (!mbuf) return buffer;
  assert(mbuf->nb_segs == 1);
  buffer.mbuf_ = mbuf;
  buffer.data_ = rte_pktmbuf_mtod(mbuf, std::byte*);
  buffer.size_ = mbuf->data_len;
  return buffer;
}

Buffer Buffer::share() const {
  Buffer other;
  if (!mbuf_) return other;
  rte_mbuf_refcnt_update(mbuf_, 1);
  other.mbuf_ = mbuf_;
  other.data_ = data_;
  other.size_ = size_;
  return other;
}

std::size_t Buffer::references() const {
  return mbuf_ ? rte_mbuf_refcnt_read(mbuf_) : 0;
}

void Buffer::truncate(std::size_t size) {
  assert(size <= bytes().size() && references() <= 1);
  if (!mbuf_) return;
  size_ = size;
  mbuf_->data_len = static_cast<std::uint16_t>(size);
  mbuf_->pkt_len = static_cast<std::uint32_t>(size);
}

void Buffer::free_reference() {
  rte_pktmbuf_free_seg(mbuf_);
}

}  // namespace sluice::net
