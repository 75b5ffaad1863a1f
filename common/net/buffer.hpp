// A counted reference to one packet buffer of a BufferPool. See docs/ownership.md for who holds one
// when. DPDK's type is only named here, so that users of buffers need none of its headers.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

struct rte_mbuf;

namespace sluice::net {

/// Models sluice::PacketBuffer: the payload of one datagram, in one segment. Not for two threads at
/// once, but references to the same bytes may live on different threads.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : mbuf_(std::exchange(other.mbuf_, nullptr)), data_(other.data_), size_(other.size_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    std::swap(mbuf_, moved.mbuf_);
    std::swap(data_, moved.data_);
    std::swap(size_, moved.size_);
    return *this;
  }
  ~Buffer() {
    if (mbuf_) free_reference();
  }

  explicit operator bool() const { return mbuf_ != nullptr; }
  std::span<const std::byte> bytes() const { return {data_, mbuf_ ? size_ : 0}; }

  /// To be written only while this is the only reference.
  std::span<std::byte> writable() { return {data_, mbuf_ ? size_ : 0}; }

  /// Another reference to the same bytes; empty if this one is.
  Buffer share() const;

  /// How many references there are; 0 when empty.
  std::size_t references() const;

  /// Keeps the first `size` <= bytes().size() bytes; only while this is the only reference.
  void truncate(std::size_t size);

  /// Takes over one reference to `mbuf`, whose data is the payload; null gives an empty buffer.
  static Buffer adopt(rte_mbuf* mbuf);

  /// Hands this reference over; the buffer is empty afterwards.
  rte_mbuf* release() { return std::exchange(mbuf_, nullptr); }

 private:
  void free_reference();

  rte_mbuf* mbuf_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sluice::net
