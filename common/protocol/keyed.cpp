#include "common/protocol/keyed.hpp"

#include <limits>

namespace sluice {
namespace {

std::size_t most_chunk_bytes(std::uint8_t chunk_bits, std::size_t row_bytes) {
  return keyed::kMostNumberBytes + 1 + keyed::bitmap_bytes(chunk_bits) + (row_bytes << chunk_bits);
}

std::size_t room_in_packet(const Session& session, std::size_t fixed_bytes) {
  return session.payload_bytes - fixed_bytes - sizeof(wire::SessionTrailer);
}

/// The room for a run in every packet of a keyed op.
std::size_t room_in_any_packet(const Session& session) {
  return std::min(room_in_packet(session, sizeof(wire::KeyValueData) + sizeof(wire::Descriptor)),
                  room_in_packet(session, sizeof(wire::KeyValueResult)));
}

}  // namespace

// --------------------------------------------------------------------------------------- geometry
std::optional<KeyedGeometry> KeyedGeometry::make(std::uint64_t key_bound,
                                                 std::uint16_t row_elements, WireType type,
                                                 const Session& session, OpNumber op) {
  assert(key_bound != 0 && key_bound != kNoChunk && row_elements != 0);
  KeyedGeometry g;
  g.key_bound = key_bound;
  g.row_elements = row_elements;
  g.type = type;
  g.streams = session.streams;
  g.first_stream = static_cast<std::uint16_t>(op % session.streams);
  const std::size_t room = room_in_any_packet(session);
  g.chunk_bits = kMostChunkBits;
  while (g.chunk_bits > 0 && (g.row_bytes() << g.chunk_bits > limits::kChunkBytes ||
                              most_chunk_bytes(g.chunk_bits, g.row_bytes()) > room))
    --g.chunk_bits;
  if (most_chunk_bytes(g.chunk_bits, g.row_bytes()) > room) return std::nullopt;
  return g;
}

std::size_t most_row_elements(WireType type, const Session& session) {
  const std::size_t most =
      (room_in_any_packet(session) - most_chunk_bytes(0, 0)) / element_bytes(type.element());
  return std::min<std::size_t>(most, std::numeric_limits<std::uint16_t>::max());
}

std::size_t run_room(const Session& session) {
  return room_in_packet(session, sizeof(wire::KeyValueData) + sizeof(wire::Descriptor));
}

std::size_t keyed_result_room(const Session& session) {
  return room_in_packet(session, sizeof(wire::KeyValueResult));
}

}  // namespace sluice
