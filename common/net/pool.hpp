// Packet buffers, all allocated when the pool is made.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/net/buffer.hpp"

struct rte_mempool;

namespace sluice::net {

/// A fixed number of equal buffers. Threads may share a pool; registered ones (ThreadRegistration)
/// use a cache of their own. It must outlive every port that was given it, and every buffer.
class BufferPool {
 public:
  /// `count` buffers of `payload_bytes` each, besides room for all headers; a pool of 0 payload
  /// bytes is one of headers for shared payloads. `name` is unique in the process, at most 25
  /// characters. Throws Error: kUnavailable naming the MiB needed and free, kInvalidArgument.
  BufferPool(const std::string& name, std::size_t count, std::size_t payload_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// A buffer of `size` writable bytes; empty when the pool is, or when `size` > payload_bytes().
  Buffer allocate(std::size_t size);

  std::size_t size() const { return count_; }
  std::size_t payload_bytes() const { return payload_bytes_; }

  /// What a buffer takes of memory with all that belongs to it, and what of that is for a frame and
  /// for drivers; the most for these in buffers that take no more than so much.
  std::size_t buffer_bytes() const;
  std::size_t room_bytes() const;
  static std::size_t largest_room(std::size_t buffer_bytes);

  /// The driver of a port that was closed may have kept so many more: they count as returned.
  void forgive_driver(std::size_t buffers) { kept_by_drivers_ += buffers; }

  using Listed = std::vector<void*>;
  /// The buffers that are in the pool now.
  Listed list();
  /// Puts those back that have left the pool since they were listed: what a driver took and forgot.
  /// Nobody else may use the pool from list() to the end of this.
  void take_back(Listed buffers);

  /// Buffers in the pool now; equals size() when every reference has come back. A snapshot while
  /// other threads work.
  std::size_t available() const;

  /// Buffers that had not come back when their pools ended, of all pools of the process.
  static std::size_t lost();

  rte_mempool* handle() const { return pool_; }

 private:
  std::size_t count_;
  std::size_t payload_bytes_;
  std::size_t kept_by_drivers_ = 0;
  rte_mempool* pool_ = nullptr;
};

}  // namespace sluice::net
