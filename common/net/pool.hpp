// Packet buffers. All of them are allocated when the pool is made.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/net/buffer.hpp"

struct rte_mempool;

namespace sluice::net {

/// A fixed number of equal buffers. Threads may share a pool; registered ones (ThreadRegistration)
/// use a cache of their own. The pool must outlive every port and every buffer that uses it.
class BufferPool {
 public:
  /// Makes `count` buffers of `payload_bytes` each, plus room for all headers. A pool of 0 payload
  /// bytes has headers for shared payloads. `name` is unique in the process, at most 25 characters.
  /// Throws Error: kUnavailable naming the MiB needed and free, kInvalidArgument.
  BufferPool(const std::string& name, std::size_t count, std::size_t payload_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Returns a buffer of `size` writable bytes; an empty one if the pool is empty or `size` >
  /// payload_bytes().
  Buffer allocate(std::size_t size);

  std::size_t size() const { return count_; }
  std::size_t payload_bytes() const { return payload_bytes_; }

  /// The memory of a buffer with all that belongs to it; the part of that for a frame and for
  /// drivers; and the most for these in buffers of a given size.
  std::size_t buffer_bytes() const;
  std::size_t room_bytes() const;
  static std::size_t largest_room(std::size_t buffer_bytes);

  /// Counts so many buffers as returned, as the driver of a closed port may have kept them.
  void forgive_driver(std::size_t buffers) { kept_by_drivers_ += buffers; }

  using Listed = std::vector<void*>;
  /// The buffers that are in the pool now.
  Listed list();
  /// Puts back those that have left the pool since they were listed: buffers that a driver took and
  /// forgot. Nobody else may use the pool from list() until this returns.
  void take_back(Listed buffers);

  /// Buffers that are in the pool now; equals size() when every reference has come back. It is a
  /// snapshot while other threads work.
  std::size_t available() const;

  /// Buffers that had not come back when their pools ended, in all pools of the process.
  static std::size_t lost();

  rte_mempool* handle() const { return pool_; }

 private:
  std::size_t count_;
  std::size_t payload_bytes_;
  std::size_t kept_by_drivers_ = 0;
  rte_mempool* pool_ = nullptr;
};

}  // namespace sluice::net
