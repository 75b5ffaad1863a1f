#include "common/protocol/keyed.hpp"

#include <limits>

namespace sluice {
namespace {

/// A bitmap of a chunk's keys, and their rows.
std::size_t most_chunk_bytes(std::uint8_t chunk_bits, std::size_t row_bytes) {
  const std::size_t keys = std::size_t{1} << chunk_bits;
  return sizeof(wire::RunHeader) + keys / 4 + 1 + keys * row_bytes;
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
  assert(key_bound != 0 && key_bound != kNoKey && row_elements != 0);
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
  // Long stripes cost least, but if each stream has few, one may have much more than another.
  const std::uint64_t wanted = limits::kStripesPerStream * std::uint64_t{session.streams};
  g.stripe_bits = static_cast<std::uint8_t>(g.chunk_bits + limits::kStripeChunkBits);
  while (g.stripe_bits > g.chunk_bits && g.stripes() < wanted) --g.stripe_bits;
  return g;
}

std::uint64_t KeyedGeometry::local_bound(std::uint16_t place) const {
  const std::uint64_t row = (stripes() - 1) / used_streams();  // the last one
  const std::uint64_t stripe = stripe_at(place, row), last = stripes() - 1;
  const std::uint64_t begin = row << stripe_bits;
  if (stripe > last) return begin;
  return begin + (stripe < last ? stripe_mask() : (key_bound - 1) & stripe_mask()) + 1;
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
