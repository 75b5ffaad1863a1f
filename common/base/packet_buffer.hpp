// Packet buffers, and the interface through which an engine sends. DPDK's mbufs and the byte
// vectors of tests implement the same two classes, so engines are compiled once and run on either.
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
/// another one, and destruction drops it. An empty buffer (default made, moved from, or from an
/// empty pool) is false. Two threads must not use one Buffer at once, but references to the same
/// bytes may belong to different threads if the memory permits that. docs/developers.md says who
/// holds a reference when.
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

  /// May be written only while this is the only reference.
  std::span<std::byte> writable() {
    assert(references() <= 1);
    return {data_, block_ ? size_ : 0};
  }

  /// Another reference to the same bytes. The buffer must not be empty.
  Buffer share() const {
    assert(block_ != nullptr);
    memory_->add_reference(block_);
    return {*memory_, block_, {data_, size_}};
  }

  /// The number of references; 0 if it is empty.
  std::size_t references() const { return block_ ? memory_->references(block_) : 0; }

  /// Passes this reference to code that knows the memory; the buffer is empty afterwards.
  void* release() { return std::exchange(block_, nullptr); }
  const void* block() const { return block_; }

 private:
  const BufferMemory* memory_ = nullptr;
  void* block_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The interface through which an engine sends.
class PacketSink {
 public:
  /// Returns exactly `size` writable bytes, or an empty buffer if the pool is empty.
  virtual Buffer allocate(std::size_t size) = 0;

  /// Never blocks: what the port cannot accept now is queued, or counted and dropped, and the
  /// protocol recovers. As long as other references exist, the bytes must not change.
  virtual void send(const Endpoint& to, Buffer buffer) = 0;

  /// Reports to `observer`, if any, what this sink's engine is doing, from now on.
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
  StageObserver* observer_ = nullptr;  // usually null
};

/// A sink that can also send a buffer's only reference and return one, for reading only.
class KeepingSink : public PacketSink {
 public:
  virtual Buffer send_and_keep(const Endpoint& to, Buffer buffer) = 0;

 protected:
  KeepingSink() = default;
  ~KeepingSink() = default;
};

}  // namespace sluice
