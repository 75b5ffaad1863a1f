// How the elements of a block are stored in a packet or slot.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sluice/types.hpp>

namespace sluice {

/// Either an ElementType, as it is; or scaled fp32: small integers q that stand for q * 2^scale,
/// with one scale for the block (common/numeric/encoding.hpp).
class WireType {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): every ElementType is one
  constexpr WireType(ElementType type) : code_(static_cast<std::uint8_t>(type)) {}
  /// The code on the wire, which may be invalid.
  constexpr explicit WireType(std::uint8_t code) : code_(code) {}
  /// fp32 elements with this encoding, which is not kNone.
  constexpr explicit WireType(Encoding encoding) : code_(static_cast<std::uint8_t>(encoding)) {}

  constexpr std::uint8_t code() const { return code_; }
  constexpr bool is_valid() const { return sluice::is_valid(element()); }
  constexpr bool is_scaled() const { return is(Encoding::kInt8) || is(Encoding::kInt4); }

  /// The type in which the elements are reduced.
  constexpr ElementType element() const {
    return is_scaled() ? ElementType::kFloat32 : static_cast<ElementType>(code_);
  }
  /// The bytes of a block with so many elements.
  constexpr std::size_t bytes(std::size_t elements) const {
    if (is(Encoding::kInt4)) return elements / 2 + elements % 2;
    return is(Encoding::kInt8) ? elements : elements * element_bytes(element());
  }

  /// Q: the integers of a scaled type are -Q .. Q.
  constexpr int most() const { return is(Encoding::kInt4) ? 7 : 127; }
  /// The scale of a block with NaN or infinity: all its elements are NaN.
  static constexpr std::int16_t kNotFinite = INT16_MIN;
  /// 2^-149 is the smallest number of fp32, and Q * 2^largest is one of its numbers.
  static constexpr std::int16_t kLeastScale = -149;
  constexpr std::int16_t largest_scale() const { return is(Encoding::kInt4) ? 125 : 121; }
  constexpr bool is_scale(std::int16_t scale) const {
    return scale == kNotFinite || (scale >= kLeastScale && scale <= largest_scale());
  }

  friend constexpr bool operator==(WireType, WireType) = default;

 private:
  constexpr bool is(Encoding encoding) const {
    return code_ == static_cast<std::uint8_t>(encoding);
  }

  std::uint8_t code_;
};

}  // namespace sluice
