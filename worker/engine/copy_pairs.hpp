// Copies of keys and rows. If keys are few, most pieces have a few pairs, of short rows: then a
// call of memcpy costs more than copying them here.
#pragma once

#include <cstddef>
#include <cstring>

namespace sluice::worker {

inline constexpr std::size_t kFewPairs = 16;
inline constexpr std::size_t kShortRow = sizeof(float);

inline void copy_row(std::byte* out, const std::byte* in, std::size_t row_bytes) {
  if (row_bytes == kShortRow)
    std::memcpy(out, in, kShortRow);
  else
    std::memcpy(out, in, row_bytes);
}

inline void copy_rows(std::byte* out, const std::byte* in, std::size_t count,
                      std::size_t row_bytes) {
  if (row_bytes != kShortRow || count > kFewPairs)
    std::memcpy(out, in, count * row_bytes);
  else
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(out + i * kShortRow, in + i * kShortRow, kShortRow);
}

}  // namespace sluice::worker
