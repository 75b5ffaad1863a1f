#include "common/net/buffer.hpp"

#include <cassert>

#include <rte_mbuf.h>

namespace sluice::net {
namespace {

rte_mbuf* mbuf_of(void* block) {
  return static_cast<rte_mbuf*>(block);
}

class Mbufs final : public BufferMemory {
 public:
  void add_reference(void* block) const override { rte_mbuf_refcnt_update(mbuf_of(block), 1); }
  void drop_reference(void* block) const override { rte_pktmbuf_free_seg(mbuf_of(block)); }
  std::size_t references(const void* block) const override {
    return rte_mbuf_refcnt_read(static_cast<const rte_mbuf*>(block));
  }
};

constexpr Mbufs kMbufs;

}  // namespace

Buffer adopt(rte_mbuf* mbuf) {
  if (!mbuf) return {};
  assert(mbuf->nb_segs == 1);
  return {kMbufs, mbuf, {rte_pktmbuf_mtod(mbuf, std::byte*), mbuf->data_len}};
}

rte_mbuf* release(Buffer& buffer) {
  return mbuf_of(buffer.release());
}

}  // namespace sluice::net
