// Numbers in network byte order, at offsets in headers and messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::net {

inline std::uint8_t get8(std::span<const std::byte> b, std::size_t at) {
  return static_cast<std::uint8_t>(b[at]);
}
inline std::uint16_t get16(std::span<const std::byte> b, std::size_t at) {
  return static_cast<std::uint16_t>(get8(b, at) << 8 | get8(b, at + 1));
}
inline std::uint32_t get32(std::span<const std::byte> b, std::size_t at) {
  return static_cast<std::uint32_t>(get16(b, at)) << 16 | get16(b, at + 2);
}

inline void put8(std::span<std::byte> b, std::size_t at, std::uint8_t v) {
  b[at] = static_cast<std::byte>(v);
}
inline void put16(std::span<std::byte> b, std::size_t at, std::uint16_t v) {
  put8(b, at, static_cast<std::uint8_t>(v >> 8));
  put8(b, at + 1, static_cast<std::uint8_t>(v));
}
inline void put32(std::span<std::byte> b, std::size_t at, std::uint32_t v) {
  put16(b, at, static_cast<std::uint16_t>(v >> 16));
  put16(b, at + 2, static_cast<std::uint16_t>(v));
}

}  // namespace sluice::net
