// Integers as they are in a packet: little-endian, unaligned, and never a native integer by
// mistake.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>

namespace sluice::wire {

template <std::integral T>
class Le {
 public:
  Le() = default;
  Le(T value) { *this = value; }  // NOLINT(google-explicit-constructor): reads as a field

  Le& operator=(T value) {
    value = in_wire_order(value);
    std::memcpy(raw_, &value, sizeof value);
    return *this;
  }

  operator T() const {  // NOLINT(google-explicit-constructor): reads as a field
    T value;
    std::memcpy(&value, raw_, sizeof value);
    return in_wire_order(value);
  }

 private:
  static constexpr T in_wire_order(T value) {
    if constexpr (std::endian::native == std::endian::little) {
      return value;
    } else {
      T swapped = 0;
      for (std::size_t i = 0; i < sizeof(T); ++i)
        swapped = static_cast<T>((swapped << 8) | ((value >> (8 * i)) & 0xff));
      return swapped;
    }
  }

  std::byte raw_[sizeof(T)] = {};
};

}  // namespace sluice::wire
