// Packets that nobody honest would send: edited ones, and those made of what was learnt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/protocol/build.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/protection.hpp"
#include "tests/fuzz/input.hpp"

namespace sluice::fuzz {

using Datagram = std::vector<std::byte>;

template <class T>
Datagram datagram_of(const T& packet) {
  const auto bytes = wire::bytes_of(packet);
  return {bytes.begin(), bytes.end()};
}

/// Remembers every identifier in a packet, as the packet's reader could.
inline void learn_from(std::span<const std::byte> bytes, Known& known) {
  constexpr std::size_t kIdentifiersEnd = 64;
  for (std::size_t at = sizeof(wire::Header); at + 8 <= std::min(bytes.size(), kIdentifiersEnd);
       at += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    constexpr std::uint64_t kSmall = 1u << 20;
    if (value > kSmall && !known.has(value)) known.learn(value);
  }
}

/// One field of 1, 2, 4 or 8 bytes becomes another value.
inline void edit_field(Input& input, const Known& known, Datagram& bytes) {
  const std::size_t size = std::size_t{1} << input.below(4);
  const std::size_t places = bytes.size() / size;
  if (places == 0) return;
  // Most fields lie in front.
  const std::size_t at = input.below(std::min<std::size_t>(places, 256)) * size;
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, size);
  switch (input.below(4)) {
    case 0:
      value += input.byte() - std::uint64_t{8};
      break;
    case 1:
      value = input.byte();
      break;
    case 2:
      value = ~std::uint64_t{input.byte()};
      break;
    default:
      value = known.choose(input);
  }
  std::memcpy(bytes.data() + at, &value, size);
}

/// So that the codec's first checks don't end it already: what needs no key is made right.
inline void seal(Datagram& bytes) {
  if (bytes.size() < sizeof(wire::Header)) return;
  auto& header = *reinterpret_cast<wire::Header*>(bytes.data());
  header.length = static_cast<std::uint16_t>(bytes.size());
  if (header.integrity != 0) header.integrity = integrity_of(bytes);
}

inline Datagram edited(Input& input, const Known& known, Datagram bytes) {
  constexpr std::size_t kEditsMost = 4;
  const std::size_t edits = 1 + input.below(kEditsMost);
  for (std::size_t i = 0; i < edits; ++i) edit_field(input, known, bytes);
  const std::uint8_t resize = input.byte();
  if (resize >= 0xf0) bytes.resize(input.below(2 * bytes.size() + 1));
  if (resize < 0xf8) seal(bytes);
  return bytes;
}

/// A KV_DATA of a few pairs, of whatever op.
inline Datagram forge_pairs(Input& input, const wire::MemberHeader& member, std::uint64_t round) {
  const bool opening = input.one_in(2);
  const auto run = input.take(input.byte() % 64u);
  auto packet = wire::make<wire::KeyValueData>(member.header.job);
  const wire::Header header = packet.data.member.header;
  packet.data.member = member;
  packet.data.member.header = header;
  packet.data.member.stream = input.byte() % 8u;
  packet.data.round = round;
  packet.data.op = input.byte() % 4u;
  packet.data.flags = opening ? wire::kDataOpening : 0;
  packet.data.shape.element_count = 1u + input.number<std::uint16_t>();
  packet.data.shape.block_elements = static_cast<std::uint16_t>(1 + input.below(4));
  packet.data.shape.wire_type = static_cast<std::uint8_t>(1 + input.below(9));
  packet.data.shape.columns = input.byte() % 9u;
  packet.horizon = input.byte() % 4u;
  packet.following = input.one_in(2) ? input.byte() : kNoKey;
  packet.run_bytes = static_cast<std::uint32_t>(run.size());
  Datagram bytes = datagram_of(packet);
  if (opening) {
    wire::Descriptor descriptor;
    descriptor.collective = static_cast<std::uint8_t>(wire::Collective::kSparseAllReduce);
    descriptor.op_type = packet.data.shape.wire_type;
    descriptor.reduction = static_cast<std::uint8_t>(1 + input.below(8));
    const auto described = datagram_of(descriptor);
    bytes.insert(bytes.end(), described.begin(), described.end());
  }
  for (const std::uint8_t byte : run) bytes.push_back(std::byte{byte});
  seal(bytes);
  return bytes;
}

/// What a member may say about a stream, in order or not.
inline Datagram forge_upstream(Input& input, const wire::MemberHeader& member) {
  const std::uint32_t job = member.header.job;
  const auto fill = [&](auto packet) {
    const wire::Header header = packet.member.header;
    packet.member = member;
    packet.member.header = header;
    packet.member.stream = input.byte() % 8u;
    return packet;
  };
  const std::uint64_t round = input.byte() % 32u;
  switch (input.below(6)) {
    case 5:
      return forge_pairs(input, member, round);
    case 0: {
      auto packet = fill(wire::make<wire::Ack>(job));
      packet.position = round;
      return datagram_of(packet);
    }
    case 1: {
      auto packet = fill(wire::make<wire::Probe>(job));
      packet.position = round;
      packet.have = input.number<std::uint16_t>();
      return datagram_of(packet);
    }
    case 2: {
      auto packet = fill(wire::make<wire::KeepAlive>(job));
      packet.number = round;
      packet.newest_beacon = round;
      packet.beacons_received = static_cast<std::uint32_t>(round);
      return datagram_of(packet);
    }
    case 3: {
      auto packet = fill(wire::make<wire::Leave>(job));
      packet.abort = input.one_in(4);
      if (packet.abort != 0) packet.reason = static_cast<std::uint16_t>(round);
      return datagram_of(packet);
    }
    default: {
      auto packet = fill(wire::make<wire::Sync>(job));
      packet.applied = round;
      return datagram_of(packet);
    }
  }
}

}  // namespace sluice::fuzz
