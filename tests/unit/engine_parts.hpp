// Hands for driving an engine packet by packet: a way out that remembers, and packets by name.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/packet.hpp"
#include "tests/sim/buffer.hpp"

namespace sluice::parts {

struct Sent {
  Endpoint to;
  sim::Bytes datagram;
  Packet packet() const {
    Packet p;
    sim::require(Packet::parse(*datagram, p) == DropReason::kNone, "a malformed packet was sent");
    return p;
  }
};

class Sink final : public KeepingSink {
 public:
  Buffer allocate(std::size_t size) override {
    if (pool->dry) return {};
    if (dry_after != 0 && --dry_after == 0) pool->dry = true;
    return sim::make_buffer(pool, size);
  }
  void send(const Endpoint& to, Buffer buffer) override {
    sent.push_back({to, sim::datagram_of(buffer)});
  }
  Buffer send_and_keep(const Endpoint& to, Buffer buffer) override {
    send(to, buffer.share());
    return buffer;
  }

  /// What was sent since the last call.
  std::vector<Sent> take() { return std::exchange(sent, {}); }

  std::shared_ptr<sim::Pool> pool = std::make_shared<sim::Pool>();
  std::vector<Sent> sent;
  std::size_t dry_after = 0;  ///< so many buffers; 0: never
};

inline Buffer received(Sink& sink, std::span<const std::byte> bytes) {
  return sim::make_buffer(sink.pool,
                          std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end()));
}

/// Those of one kind.
template <class T>
std::vector<Sent> of_kind(const std::vector<Sent>& all) {
  std::vector<Sent> some;
  for (const Sent& sent : all)
    if (sent.packet().kind() == wire::KindOf<T>::kValue) some.push_back(sent);
  return some;
}

/// What travels in one column of a DATA or RESULT.
struct Block {
  std::uint32_t index = kNoBlock.value;
  std::uint32_t next = kNoBlock.value;
  std::vector<float> elements = {};  ///< empty: absent
};

/// The bytes of a DATA or RESULT of floats; `fill` sets the fields before the columns.
template <class T, class F>
std::vector<std::byte> block_packet(std::uint32_t job, const wire::Shape& shape, bool first,
                                    const std::vector<Block>& blocks, F&& fill) {
  std::size_t payload = 0;
  for (const Block& block : blocks) payload += block.elements.size() * sizeof(float);
  std::vector<std::byte> bytes(wire::block_packet_bytes<T>(shape.columns, first, payload));
  auto packet = wire::BlockPacket<T>::begin(bytes, job, shape.columns, first);
  packet.fixed.shape = shape;
  if (first) {
    packet.descriptor->collective = static_cast<std::uint8_t>(wire::Collective::kAllReduce);
    packet.descriptor->op_type = static_cast<std::uint8_t>(ElementType::kFloat32);
    packet.descriptor->reduction = static_cast<std::uint8_t>(Reduction::kSum);
  }
  for (std::size_t c = 0; c < blocks.size() && c < shape.columns; ++c) {
    packet.columns[c].index = blocks[c].index;
    packet.columns[c].next = blocks[c].next;
    packet.columns[c].flags = blocks[c].elements.empty() ? 0 : wire::kColumnPresent;
    const std::size_t size = blocks[c].elements.size() * sizeof(float);
    if (size != 0) std::memcpy(packet.payload, blocks[c].elements.data(), size);
    packet.payload += size;
  }
  for (std::size_t c = blocks.size(); c < shape.columns; ++c)
    packet.columns[c].index = packet.columns[c].next = kNoBlock.value;
  fill(packet.fixed, packet.descriptor);
  return bytes;
}

/// The blocks of a received DATA or RESULT of floats.
inline std::vector<Block> blocks_of(const Packet& packet) {
  std::vector<Block> blocks;
  for (const wire::Column& column : packet.columns()) blocks.push_back({column.index, column.next});
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> bytes) {
    blocks[c].elements.resize(bytes.size() / sizeof(float));
    std::memcpy(blocks[c].elements.data(), bytes.data(), bytes.size());
  });
  return blocks;
}

}  // namespace sluice::parts
