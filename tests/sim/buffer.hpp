// Packet buffers of the simulation: counted, so that leaks and excess show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/packet_buffer.hpp"
#include "tests/sim/bug.hpp"

namespace sluice::sim {

/// The bytes of a datagram. Nobody writes to bytes that are under way or were received.
using Bytes = std::shared_ptr<std::vector<std::byte>>;

/// The buffers of one process. A reference counts once, however many buffers share the bytes.
struct Pool {
  std::size_t live = 0;      ///< buffers in use
  bool dry = false;          ///< no buffer can be allocated
  std::uint64_t misses = 0;  ///< how often there was none
};

class Memory final : public BufferMemory {
 public:
  struct Block {
    Block(std::shared_ptr<Pool> of, Bytes all) : pool(std::move(of)), bytes(std::move(all)) {
      ++pool->live;
    }
    ~Block() { --pool->live; }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::shared_ptr<Pool> pool;
    Bytes bytes;
    std::size_t references = 1;  // of buffers; the network has its own reference to the bytes
  };

  void add_reference(void* block) const override { ++static_cast<Block*>(block)->references; }
  void drop_reference(void* block) const override {
    auto* ours = static_cast<Block*>(block);
    if (--ours->references == 0) delete ours;
  }
  std::size_t references(const void* block) const override {
    const auto* ours = static_cast<const Block*>(block);
    return ours->references + static_cast<std::size_t>(ours->bytes.use_count()) - 1;
  }
};

inline constexpr Memory kMemory;

inline Buffer make_buffer(std::shared_ptr<Pool> pool, Bytes bytes) {
  auto* block = new Memory::Block(std::move(pool), std::move(bytes));
  return {kMemory, block, *block->bytes};
}

/// A buffer that is going to be written.
inline Buffer make_buffer(std::shared_ptr<Pool> pool, std::size_t size) {
  return make_buffer(std::move(pool),
                     std::make_shared<std::vector<std::byte>>(size, std::byte{0xa5}));
}

/// The bytes that go to the network.
inline Bytes datagram_of(const Buffer& buffer) {
  require(static_cast<bool>(buffer), "an empty buffer is sent");
  return static_cast<const Memory::Block*>(buffer.block())->bytes;
}

}  // namespace sluice::sim
