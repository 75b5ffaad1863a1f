// Packet buffers of the simulation: counted, so that leaks and excess show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/sim/bug.hpp"

namespace sluice::sim {

/// The bytes of a datagram; what is on its way, or was received, is never written to.
using Bytes = std::shared_ptr<std::vector<std::byte>>;

/// One process's buffers. A reference counts once, however many buffers share the bytes.
struct Pool {
  std::size_t live = 0;      ///< buffers in use
  bool dry = false;          ///< nothing is to be had
  std::uint64_t misses = 0;  ///< how often nothing was
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<Pool> pool, Bytes bytes)
      : use_(std::make_shared<Use>(std::move(pool))),
        bytes_(std::move(bytes)),
        size_(bytes_->size()) {}

  explicit operator bool() const { return use_ != nullptr; }
  std::span<const std::byte> bytes() const { return {bytes_->data(), size_}; }
  std::span<std::byte> writable() {
    require(bytes_.use_count() == 1, "a shared buffer is written to");
    return {bytes_->data(), size_};
  }
  Buffer share() const {
    require(use_ != nullptr, "an empty buffer is shared");
    return *this;
  }
  void truncate(std::size_t size) { size_ = size; }

  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    use_ = std::move(other.use_);
    bytes_ = std::move(other.bytes_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  /// What goes on the wire.
  Bytes datagram() const {
    return size_ == bytes_->size()
               ? bytes_
               : std::make_shared<std::vector<std::byte>>(bytes().begin(), bytes().end());
  }

 private:
  struct Use {
    explicit Use(std::shared_ptr<Pool> of) : pool(std::move(of)) { ++pool->live; }
    ~Use() { --pool->live; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    std::shared_ptr<Pool> pool;
  };

  Buffer(const Buffer&) = default;
  Buffer& operator=(const Buffer&) = delete;

  std::shared_ptr<Use> use_;
  Bytes bytes_;
  std::size_t size_ = 0;
};

}  // namespace sluice::sim
