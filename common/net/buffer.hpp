// Buffers whose bytes are DPDK's mbufs: each is the payload of one datagram, in one segment. DPDK's
// type is only declared here, so users of buffers need no header of DPDK.
#pragma once

#include "common/base/packet_buffer.hpp"

struct rte_mbuf;

namespace sluice::net {

/// Takes over one reference to `mbuf`, whose data is the payload. A null pointer gives an empty
/// buffer.
Buffer adopt(rte_mbuf* mbuf);

/// Returns a buffer's reference, or null if it is empty. The buffer is empty afterwards.
rte_mbuf* release(Buffer& buffer);

}  // namespace sluice::net
