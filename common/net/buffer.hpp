// Buffers whose bytes are DPDK's mbufs: the payload of one datagram, in one segment. DPDK's type is
// only named here, so that users of buffers need none of its headers.
#pragma once

#include "common/base/packet_buffer.hpp"

struct rte_mbuf;

namespace sluice::net {

/// Takes over one reference to `mbuf`, whose data is the payload; null gives an empty buffer.
Buffer adopt(rte_mbuf* mbuf);

/// Hands a buffer's reference over; null if it is empty. The buffer is empty afterwards.
rte_mbuf* release(Buffer& buffer);

}  // namespace sluice::net
