#include "common/net/pool.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>

#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <sluice/error.hpp>

#include "common/net/eal.hpp"
#include "common/net/eal_log.hpp"
#include "common/net/framing.hpp"

namespace sluice::net {
namespace {

constexpr std::size_t kCacheBuffers = 256;

std::atomic<std::size_t> lost_buffers{0};

// Drivers need room in addition to the frame: for a VLAN tag, for virtio's header, and for what the
// ring of af_packet has in front; and some NICs count buffers in whole KiB.
constexpr std::size_t kDriverBytes = 128;
constexpr std::size_t kRoomUnit = 1024;

// Headers and payload behind the headroom.
std::size_t data_room(std::size_t payload_bytes) {
  if (payload_bytes == 0) return RTE_PKTMBUF_HEADROOM + RTE_CACHE_LINE_SIZE;
  return RTE_PKTMBUF_HEADROOM +
         RTE_ALIGN_CEIL(kHeaderBytes + payload_bytes + kDriverBytes, kRoomUnit);
}

std::size_t bytes_with_room(std::size_t room) {
  return rte_mempool_calc_obj_size(static_cast<std::uint32_t>(sizeof(rte_mbuf) + room), 0, nullptr);
}

void check_arguments(const std::string& name, std::size_t count, std::size_t payload_bytes) {
  if (name.empty() || name.size() >= RTE_MEMPOOL_NAMESIZE)
    throw Error(ErrorCode::kInvalidArgument, "buffer pool name '" + name + "': 1 to " +
                                                 std::to_string(RTE_MEMPOOL_NAMESIZE - 1) +
                                                 " characters expected");
  if (count == 0 || count > (std::size_t{1} << 30))
    throw Error(
        ErrorCode::kInvalidArgument,
        "buffer pool '" + name + "': " + std::to_string(count) + " buffers, expected 1 to 2^30");
  if (data_room(payload_bytes) > UINT16_MAX)
    throw Error(ErrorCode::kInvalidArgument, "buffer pool '" + name + "': payloads of " +
                                                 std::to_string(payload_bytes) +
                                                 " bytes, expected at most 64000");
}

// Does what rte_pktmbuf_pool_create does, but without the requirement that every buffer is
// physically contiguous when there are no hugepages. That requirement rounds each buffer up to
// whole 4 KiB pages; and without hugepages no device uses physical addresses anyway.
rte_mempool* create(const std::string& name, std::size_t count, std::size_t room) {
  const unsigned flags = rte_eal_has_hugepages() ? 0 : RTE_MEMPOOL_F_NO_IOVA_CONTIG;
  const auto cache = static_cast<unsigned>(std::min(kCacheBuffers, count / 8));
  rte_mempool* pool = rte_mempool_create_empty(
      name.c_str(), static_cast<unsigned>(count), static_cast<unsigned>(sizeof(rte_mbuf) + room),
      cache, sizeof(rte_pktmbuf_pool_private), SOCKET_ID_ANY, flags);
  if (!pool) return nullptr;
  rte_pktmbuf_pool_private layout{};
  layout.mbuf_data_room_size = static_cast<std::uint16_t>(room);
  // Last in, first out: the buffer that was used last is probably still in the cache.
  if (rte_mempool_set_ops_byname(pool, "stack", nullptr) != 0)
    rte_mempool_set_ops_byname(pool, "ring_mp_mc", nullptr);  // if that plug-in is missing
  rte_pktmbuf_pool_init(pool, &layout);
  if (rte_mempool_populate_default(pool) < 0) {
    rte_mempool_free(pool);
    return nullptr;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, nullptr);
  return pool;
}

std::size_t mebibytes(std::size_t bytes) {
  return (bytes + (1 << 20) - 1) >> 20;
}

}  // namespace

BufferPool::BufferPool(const std::string& name, std::size_t count, std::size_t payload_bytes)
    : count_(count), payload_bytes_(payload_bytes) {
  check_arguments(name, count, payload_bytes);
  const std::size_t room = data_room(payload_bytes);
  pool_ = create(name, count, room);
  if (pool_) return;
  if (rte_errno == EEXIST)
    throw Error(ErrorCode::kInvalidArgument, "buffer pool '" + name + "' exists already");
  const std::size_t each = bytes_with_room(room);
  throw Error(ErrorCode::kUnavailable,
              "buffer pool '" + name + "': " + std::to_string(count) + " buffers need about " +
                  std::to_string(mebibytes(each * count)) + " MiB, " +
                  std::to_string(memory_available() >> 20) + " MiB of packet memory are free (" +
                  rte_strerror(rte_errno) + "); give the process more packet memory");
}

BufferPool::~BufferPool() {
  // Freeing memory to which a buffer or a port still points would corrupt it: so the pool is kept.
  std::size_t missing = size() - available();
  if (missing <= kept_by_drivers_) missing = 0;
  lost_buffers += missing;
  if (missing == 0)
    rte_mempool_free(pool_);
  else
    EalLog::instance().say(LogLevel::kError,
                           std::string("buffer pool '") + pool_->name +
                               "': " + std::to_string(missing) + " of " + std::to_string(size()) +
                               " buffers were not returned; its memory stays in use");
}

Buffer BufferPool::allocate(std::size_t size) {
  if (size > payload_bytes_) return {};
  rte_mbuf* mbuf = rte_pktmbuf_alloc(pool_);
  if (!mbuf) return {};
  mbuf->data_len = static_cast<std::uint16_t>(size);
  mbuf->pkt_len = static_cast<std::uint32_t>(size);
  return adopt(mbuf);
}

BufferPool::Listed BufferPool::list() {
  Listed listed;
  for (void* buffer = nullptr; rte_mempool_get(pool_, &buffer) == 0;) listed.push_back(buffer);
  for (void* buffer : listed) rte_mempool_put(pool_, buffer);
  return listed;
}

void BufferPool::take_back(Listed buffers) {
  Listed here = list();
  std::ranges::sort(here);
  std::ranges::sort(buffers);
  Listed gone;
  std::ranges::set_difference(buffers, here, std::back_inserter(gone));
  for (void* buffer : gone) rte_mempool_put(pool_, buffer);
}

std::size_t BufferPool::available() const {
  return rte_mempool_avail_count(pool_);
}

std::size_t BufferPool::buffer_bytes() const {
  return pool_->header_size + pool_->elt_size + pool_->trailer_size;
}

std::size_t BufferPool::room_bytes() const {
  return data_room(payload_bytes_) - RTE_PKTMBUF_HEADROOM;
}

std::size_t BufferPool::largest_room(std::size_t buffer_bytes) {
  std::size_t room = 0;
  while (bytes_with_room(RTE_PKTMBUF_HEADROOM + room + kRoomUnit) <= buffer_bytes)
    room += kRoomUnit;
  return room;
}

std::size_t BufferPool::lost() {
  return lost_buffers;
}

}  // namespace sluice::net
