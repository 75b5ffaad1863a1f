// How the elements of a block lie in a packet or slot.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sluice/types.hpp>

namespace sluice {

/// Those of an ElementType, as they are; or fp32 that is scaled: small integers q for q * 2^scale,
/// with one scale for the block (common/numeric/encoding.hpp).
class WireType {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): every ElementType is one
  constexpr WireType(ElementType type) : code_(static_cast<std::uint8_t>(type)) {}
  /// As it is on the wire; perhaps of none.
  constexpr explicit WireType(std::uint8_t code) : code_(code) {}
  /// Of fp32 elements with this encoding, which is not kNone.
  constexpr explicit WireType(Encoding encoding) : code_(static_cast<std::uint8_t>(encoding)) {}

  constexpr std::uint8_t code() const { return code_; }
  constexpr bool is_valid() const { return sluice::is_valid(element()); }
  constexpr bool is_scaled() const { return is(Encoding::kInt8) || is(Encoding::kInt4); }

  /// What the elements are reduced as.
  constexpr ElementType element() const {
    return is_scaled() ? ElementType::kFloat32 : static_cast<ElementType>(code_);
  }
  /// Of a block of so many elements.
  constexpr std::size_t bytes(std::size_t elements) const {
    if (is(Encoding::kInt4)) return elements / 2 + elements % 2;
    return is(Encoding::kInt8) ? elements : elements * element_bytes(element());
  }

  /// Q: the numbers of a scaled type are -Q .. Q.
  constexpr int most() const { return is(Encoding::kInt4) ? 7 : 127; }
  /// Scale of a block with NaN or infinity: all its elements are NaN.
  static constexpr std::int16_t kNotFinite = INT16_MIN;
  /// 2^-149 is the least of fp32, and Q * 2^largest is one.
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
