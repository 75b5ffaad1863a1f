// Keyed ops: sums of sorted pairs of a 64-bit key and a row of values (docs/protocol.md, "Keyed
// streams"). Keys are divided into stripes of 2^b neighbours, and each U stripes, a row of stripes,
// are dealt to the U streams that the op uses: one to each, beginning with another stream in each
// row. On its stream a stripe's keys follow those of the stripe in the row before: they have
// *local* keys, which count from 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/wire_type.hpp"
#include "common/protocol/key_run.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

namespace keyed {

/// Every bit of the result depends on every bit of `x` (the last steps of splitmix64).
inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

}  // namespace keyed

/// How a keyed op's keys are divided among the streams of a job.
struct KeyedGeometry {
  std::uint64_t key_bound = 1;     ///< all keys are less; at least 1
  std::uint16_t row_elements = 1;  ///< elements of each key's row, at least 1
  std::uint8_t chunk_bits = 0;     ///< scaled rows of 2^chunk_bits neighbours have one scale
  std::uint8_t stripe_bits = 0;    ///< a stripe has 2^stripe_bits keys, a chunk or more
  std::uint16_t streams = 1;       ///< S
  /// Takes part in every op, so that descriptors are always compared.
  std::uint16_t first_stream = 0;
  WireType type = ElementType::kFloat32;

  /// Nothing if a row is too long for a packet.
  static std::optional<KeyedGeometry> make(std::uint64_t key_bound, std::uint16_t row_elements,
                                           WireType type, const Session& session, OpNumber op);

  RunFormat format() const { return {chunk_bits, row_elements, type}; }
  /// The bytes of a row as it is reduced. Scaled elements are then as long as fp32; their chunks
  /// have the size of those of fp32.
  std::size_t row_bytes() const { return row_elements * element_bytes(type.element()); }
  std::size_t chunk_keys() const { return std::size_t{1} << chunk_bits; }
  std::uint64_t chunk_of(std::uint64_t key) const { return key >> chunk_bits; }
  std::uint64_t chunks() const { return chunk_of(key_bound - 1) + 1; }

  std::uint64_t stripe_of(std::uint64_t key) const { return key >> stripe_bits; }
  std::uint64_t stripe_mask() const { return (std::uint64_t{1} << stripe_bits) - 1; }
  std::uint64_t stripes() const { return stripe_of(key_bound - 1) + 1; }
  std::uint16_t used_streams() const {
    return static_cast<std::uint16_t>(std::min<std::uint64_t>(streams, stripes()));
  }
  bool uses(StreamId s) const { return place_of(s) < used_streams(); }

  // A place is a stream, counted from the first one.
  std::uint16_t place_of(StreamId s) const {
    return static_cast<std::uint16_t>((std::uint32_t{s.value} + streams - first_stream) % streams);
  }
  StreamId stream_at(std::uint16_t place) const {
    const std::uint32_t stream = std::uint32_t{first_stream} + place;
    return StreamId{static_cast<std::uint16_t>(stream < streams ? stream : stream - streams)};
  }

  /// Where a stripe lies.
  struct Dealt {
    std::uint16_t place;
    std::uint64_t local;  ///< its first key's
  };
  Dealt deal(std::uint64_t stripe) const;
  std::uint64_t local_of(std::uint64_t key) const {
    return deal(stripe_of(key)).local | (key & stripe_mask());
  }
  /// The key with this local key at a place; for a local key beyond the place's last one, at least
  /// `key_bound`.
  std::uint64_t key_of(std::uint16_t place, std::uint64_t local) const {
    return (stripe_at(place, local >> stripe_bits) << stripe_bits) | (local & stripe_mask());
  }
  /// The local keys of a place are less.
  std::uint64_t local_bound(std::uint16_t place) const;

 private:
  /// The place of a row's first stripe.
  std::uint32_t first_place(std::uint64_t row) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint32_t>((Wide{keyed::mixed(row)} * used_streams()) >> 64);
  }
  std::uint64_t stripe_at(std::uint16_t place, std::uint64_t row) const {
    const std::uint32_t used = used_streams(), first = first_place(row);
    return row * used + (place >= first ? place - first : place + used - first);
  }
};

/// The elements of the longest row that fits into a packet of the session.
std::size_t most_row_elements(WireType type, const Session& session);

/// The most bytes of a run in a packet of a keyed op.
std::size_t run_room(const Session& session);
std::size_t keyed_result_room(const Session& session);

// Inline, as it is called for each stripe that has keys.
inline KeyedGeometry::Dealt KeyedGeometry::deal(std::uint64_t stripe) const {
  const std::uint32_t used = used_streams();
  const bool is_short = stripe >> 32 == 0;  // then the division is a short one
  const std::uint64_t row = is_short ? static_cast<std::uint32_t>(stripe) / used : stripe / used;
  const auto column = static_cast<std::uint32_t>(stripe - row * used);
  const std::uint32_t place = first_place(row) + column;
  return {static_cast<std::uint16_t>(place < used ? place : place - used), row << stripe_bits};
}

/// A rank whose `following` is less than this contributes its next run to the round that begins at
/// `next`: another full RESULT would probably reach as far. `run_bytes` and `room` are what the
/// RESULT before has and what it may have.
inline std::uint64_t renewal_bound(std::uint64_t horizon, std::uint64_t next,
                                   std::uint32_t run_bytes, std::size_t room) {
  if (next == kNoKey || run_bytes == 0) return next == kNoKey ? kNoKey : next + 1;
  __extension__ using Wide = unsigned __int128;
  const Wide bound = Wide{next} + std::max<Wide>(Wide{next - horizon} * room / run_bytes, 1);
  return static_cast<std::uint64_t>(std::min<Wide>(bound, kNoKey));
}

/// The threshold of a keyed op: smaller sums are not delivered. It is in the descriptor, in the
/// bits that say for other ops what is wanted.
inline double threshold_of(const wire::Descriptor& descriptor) {
  return std::bit_cast<double>(std::uint64_t{descriptor.begin});
}

/// The class of a sum that does not reach the threshold, by its magnitude: see
/// wire::kRejectedClasses.
inline std::size_t rejected_class(double magnitude, double threshold) {
  std::size_t in_class = 0;
  for (double bound = threshold / 2; in_class + 1 < wire::kRejectedClasses && magnitude < bound;
       bound /= 2)
    ++in_class;
  return in_class;
}

}  // namespace sluice
