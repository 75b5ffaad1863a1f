// Reads everything that an accepted packet offers and checks that it lies within the packet. Shared
// by the fuzzer and the unit tests; a broken promise of the codec throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "common/protocol/key_run.hpp"
#include "common/protocol/packet.hpp"

namespace sluice::fuzz {

inline void require(bool holds, const char* promise) {
  if (!holds) throw std::logic_error(promise);
}

class PacketWalk {
 public:
  /// Parses `bytes`, and reads the packet if it is one.
  static DropReason run(std::span<const std::byte> bytes) {
    Packet packet;
    const DropReason reason = Packet::parse(bytes, packet);
    require((reason == DropReason::kNone) == !packet.bytes().empty(), "set only if accepted");
    if (reason == DropReason::kNone) PacketWalk(packet).read();
    return reason;
  }

 private:
  explicit PacketWalk(const Packet& packet) : packet_(packet) {}

  void read() {
    read_bytes(packet_.bytes());
    const std::size_t trailer = packet_.bytes().size() - packet_.body().size();
    require(trailer == (packet_.is_authenticated() ? wire::trailer_bytes(packet_.kind()) : 0),
            "a whole trailer");
    if (packet_.is_encrypted()) return read_clear();
    bool visited = false;
    visit(packet_, [&](const auto& part) {
      visited = true;
      read_fixed(part);
    });
    require(visited, "a kind of version 1");
  }

  /// Of a packet that is not decrypted yet.
  void read_clear() {
    require(packet_.body().size() >= wire::clear_bytes(packet_.kind()), "whose it is");
    read_bytes(packet_.body().first(wire::clear_bytes(packet_.kind())));
  }

  void read_fixed(const wire::Data& data) {
    require((packet_.descriptor() != nullptr) == ((data.flags & wire::kDataOpening) != 0),
            "a descriptor in an opening round");
    blocks();
  }
  void read_fixed(const wire::Result&) {
    require(packet_.descriptor() == nullptr, "a result has no descriptor");
    blocks();
  }
  void read_fixed(const wire::KeyValueData& data) {
    require((packet_.descriptor() != nullptr) == ((data.data.flags & wire::kDataOpening) != 0),
            "a descriptor in an opening round");
    read_descriptor();
    pairs(data.run_bytes, 0, data.following);
  }
  void read_fixed(const wire::KeyValueResult& result) {
    require(packet_.descriptor() == nullptr, "a result has no descriptor");
    pairs(result.run_bytes, result.horizon, result.next);
  }
  template <class T>
  void read_fixed(const T& part) {
    require(packet_.body().size() == sizeof(T), "fixed length");
    read_part(part);
  }

  std::uint64_t block_count() const {
    const wire::Shape& s = packet_.shape();
    require(s.block_elements >= 1 && s.block_elements <= wire::kMaxBlockElements, "block elements");
    require(s.columns >= 1 && s.columns <= wire::kMaxColumns, "columns");
    return s.element_count / s.block_elements + (s.element_count % s.block_elements != 0);
  }

  void blocks() {
    read_descriptor();
    const std::uint64_t count = block_count();
    std::vector<std::uint8_t> present;
    std::uint8_t c = 0;
    for (const wire::Column& column : packet_.columns()) {
      read_part(column);
      require(column.index == kNoBlock.value || column.index < count, "index within the tensor");
      require(column.next == kNoBlock.value || (column.next < count && column.next > column.index),
              "next after index, within the tensor");
      if (column.flags == wire::kColumnPresent) present.push_back(c);
      const WireType type(packet_.shape().wire_type);
      require(!type.is_scaled() || column.flags == 0 || type.is_scale(column.scale),
              "a scaled block has a scale that can be");
      require(column.flags != wire::kColumnWithheld || packet_.kind() == wire::Kind::kResult,
              "only results are withheld");
      ++c;
    }
    require(packet_.has_blocks() == !present.empty(), "blocks present");
    const auto columns = packet_.columns();
    const std::byte* end = reinterpret_cast<const std::byte*>(columns.data() + columns.size());
    std::size_t seen = 0;
    packet_.for_each_block([&](std::uint8_t column, std::span<const std::byte> block) {
      require(seen < present.size() && present[seen++] == column, "blocks in column order");
      require(block.data() == end && !block.empty(), "blocks one after another");
      require(block.size() == Packet::block_bytes(packet_.shape(), columns[column].index),
              "a whole block");
      read_bytes(block);
      end = block.data() + block.size();
    });
    require(seen == present.size(), "every block that is present");
    require(end == packet_.body().data() + packet_.body().size(), "nothing behind the blocks");
  }

  /// A run of keys from `lowest` to before `end`.
  void pairs(std::uint32_t run_bytes, std::uint64_t lowest, std::uint64_t end) {
    const wire::Shape& s = packet_.shape();
    require(packet_.is_keyed(), "a keyed packet");
    require(packet_.run().size() == run_bytes, "a run as long as it says");
    require(s.element_count != 0 && s.element_count != kNoKey && s.block_elements != 0 &&
                s.columns <= kMostChunkBits,
            "a keyed shape");
    const auto run = RunView::parse(packet_.run());
    require(run.has_value(), "a run that is one");
    if (run->coding.keys == 0) return;
    std::vector<std::uint64_t> keys(run->coding.keys + 1);
    KeyReader reader(*run);
    keys.resize(reader.read_below(kNoKey, 0, keys.data()));
    require(keys.size() <= run->coding.keys, "no more keys than it says");
    require(keys.front() >= lowest && keys.front() < std::min(end, std::uint64_t{s.element_count}),
            "a first key in range");
    for (std::size_t i = 1; i < keys.size(); ++i) require(keys[i] > keys[i - 1], "keys in order");
    run->has_rows({s.columns, s.block_elements, WireType(s.wire_type)});
    reader.last();
    read_bytes(run->rows);
  }

  void read_descriptor() {
    if (const wire::Descriptor* d = packet_.descriptor(); d != nullptr) read_part(*d);
  }

  template <class T>
  void read_part(const T& part) {
    const auto bytes = std::as_bytes(std::span(&part, 1));
    const auto all = packet_.bytes();
    require(bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size(),
            "every part within the packet");
    read_bytes(bytes);
  }

  /// Reads each byte, so that a sanitizer sees it.
  void read_bytes(std::span<const std::byte> bytes) {
    unsigned sum = 0;
    for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
    sink_ = sink_ + sum;
  }

  Packet packet_;
  volatile unsigned sink_ = 0;
};

}  // namespace sluice::fuzz
