// Rising keys as the gaps between them, in symbols of some bits each, as a run of pairs has them
// (common/protocol/key_run.hpp). The kernels here handle several symbols at once. Where those that
// read stop, as fewer are left or the processor cannot do it, the caller goes on symbol by symbol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::numeric {

/// Symbols of `width` bits, 2 at least; the lowest bits come first. The largest one is an escape.
struct GapSymbols {
  std::span<const std::byte> bytes;
  unsigned width;
  std::size_t count;
};

/// How far symbols have been read.
struct GapReading {
  std::size_t symbol;   ///< the next one
  std::size_t keys;     ///< so many have been found
  std::uint64_t least;  ///< the next key is no less
};

/// Writes each key, with `shift` added, to out[reading.keys] and behind. Writes to less than
/// out[most], and reads no key that is not less than `far`.
void read_gaps(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
               std::uint32_t shift, std::uint32_t* out);
void read_gaps(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
               std::uint64_t shift, std::uint64_t* out);

/// The same, but only counts the keys.
void pass_gaps(const GapSymbols& symbols, GapReading& reading);

/// Of the gaps between these keys, which rise: how many take an escape, and whether one takes more.
struct GapCount {
  std::size_t escapes;
  bool has_far;
};
GapCount count_gaps(std::span<const std::uint64_t> keys, std::uint64_t escape);

/// Writes the symbols of the gaps between these keys, which rise. Writes no byte at `room_end` or
/// behind, but any bytes before it.
void write_gaps(std::span<const std::uint64_t> keys, unsigned width, std::byte* out,
                const std::byte* room_end);

}  // namespace sluice::numeric
