// Packet buffers and the way out of an engine. DPDK's mbufs and the byte vectors of tests lie
// behind the same two classes, so the engines are compiled once and run on either.
#pragma once

#include <cassert>
#include <cstddef>
#include <span>
#include <utility>

#include "common/base/endpoint.hpp"
#include "common/base/stage.hpp"

namespace sluice {

/// Where the bytes of buffers lie, and how references to them are counted: in the block itself.
class BufferMemory {
 public:
  virtual void add_reference(void* block) const = 0;
  virtual void drop_reference(void* block) const = 0;  ///< the last one frees the block
  virtual std::size_t references(const void* block) const = 0;

 protected:
  ~BufferMemory() = default;
};

/// A counted reference to the bytes of one datagram. Moving passes the reference on, `share` makes
/// another, destroying gives it back. An empty one (default made, moved from, or from an empty
/// pool) is false. Not for two threads at once, but references to the same bytes may live on
/// different threads where the memory allows it. docs/developers.md tells who holds one when.
class Buffer {
 public:
  Buffer() = default;
  /// Takes over one reference to `block`, whose payload is `bytes`.
  Buffer(const BufferMemory& memory, void* block, std::span<std::byte> bytes)
      : memory_(&memory), block_(block), data_(bytes.data()), size_(bytes.size()) {}
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_),
        block_(std::exchange(other.block_, nullptr)),
        data_(other.data_),
        size_(other.size_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    std::swap(memory_, moved.memory_);
    std::swap(block_, moved.block_);
    std::swap(data_, moved.data_);
    std::swap(size_, moved.size_);
    return *this;
  }
  ~Buffer() {
    if (block_) memory_->drop_reference(block_);
  }

  explicit operator bool() const { return block_ != nullptr; }
  std::span<const std::byte> bytes() const { return {data_, block_ ? size_ : 0}; }

  /// To be written only while this is the only reference.
  std::span<std::byte> writable() {
    assert(references() <= 1);
    return {data_, block_ ? size_ : 0};
  }

  /// Another reference to the same bytes. Not of an empty buffer.
  Buffer share() const {
    assert(block_ != nullptr);
    memory_->add_reference(block_);
    return {*memory_, block_, {data_, size_}};
  }

  /// How many references there are; 0 when empty.
  std::size_t references() const { return block_ ? memory_->references(block_) : 0; }

  /// Hands this reference over to whoever knows the memory; the buffer is empty afterwards.
  void* release() { return std::exchange(block_, nullptr); }
  const void* block() const { return block_; }

 private:
  const BufferMemory* memory_ = nullptr;
  void* block_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The way out of an engine.
class PacketSink {
 public:
  /// Exactly `size` writable bytes, or an empty buffer when the pool is empty.
  virtual Buffer allocate(std::size_t size) = 0;

  /// Never blocks: what the port cannot take now is queued, or counted and dropped, and the
  /// protocol recovers. If other references exist the bytes must not change as long as they do.
  virtual void send(const Endpoint& to, Buffer buffer) = 0;

  /// From now on `observer`, if any, is told what this sink's engine is busy with.
  void observe(StageObserver* observer) { observer_ = observer; }
  void enter(Stage stage) {
    if (observer_) observer_->enter(stage);
  }

 protected:
  PacketSink() = default;
  ~PacketSink() = default;
  PacketSink(const PacketSink&) = delete;
  PacketSink& operator=(const PacketSink&) = delete;

 private:
  StageObserver* observer_ = nullptr;  // mostly none
};

/// A way out that can also send a buffer's only reference and give one back, to be read from and
/// not to be sent.
class KeepingSink : public PacketSink {
 public:
  virtual Buffer send_and_keep(const Endpoint& to, Buffer buffer) = 0;

 protected:
  KeepingSink() = default;
  ~KeepingSink() = default;
};

}  // namespace sluice
