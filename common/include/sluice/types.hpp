// What a tensor is made of and how its elements are combined. Shared by the public API, the wire
// format and the kernels; the numeric values are those of the wire and never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

/// Type of one tensor element, little-endian in memory and on the wire.
enum class ElementType : std::uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,   ///< IEEE 754 binary16
  kBFloat16 = 4,  ///< upper half of a binary32
  kInt32 = 5,
  kInt64 = 6,
  kInt8 = 7,
  kUInt8 = 8,  ///< a bool too, as 0 or 1: its logical or is kBitOr, and so on
  kInt16 = 9,
};

/// How the fp32 elements of a reduction travel, in both directions: in fewer bits, each sum rounded
/// once more. The numbers are those of the wire.
enum class Encoding : std::uint8_t {
  kNone = 0,      ///< as they are
  kFloat16 = 3,   ///< as IEEE 754 binary16: from 65520 on infinity
  kBFloat16 = 4,  ///< as the upper half of a binary32
  kInt8 = 10,     ///< as integers of 8 bits, times a power of two that each block has
  kInt4 = 11,     ///< the same of 4 bits
};
/// Whether the elements of a block are scaled.
constexpr bool is_scaled(Encoding e) {
  return e == Encoding::kInt8 || e == Encoding::kInt4;
}

/// How the ranks' elements become one. A rank whose block is zero contributes zeros. A result of
/// floats is never -0.0, but +0.0, in blocks of any size, and its NaNs are quiet.
enum class Reduction : std::uint8_t {
  kSum = 1,      ///< in rank order; integers wrap; fp16 and bf16 accumulate in fp32
  kMin = 2,      ///< NaN if any rank has NaN
  kMax = 3,      ///< NaN if any rank has NaN
  kAverage = 4,  ///< sum / ranks before the single rounding; integers do not wrap, but truncate
                 ///< towards zero
  kProduct = 5,  ///< as the sum, but zeros of ranks whose block is zero come last
  kBitAnd = 6,   ///< of integers, as the next two
  kBitOr = 7,
  kBitXor = 8,
};

/// A 16-bit float as its bits, so that spans of it need no compiler extension.
struct Float16 {
  std::uint16_t bits = 0;
  friend bool operator==(Float16, Float16) = default;
};
struct BFloat16 {
  std::uint16_t bits = 0;
  friend bool operator==(BFloat16, BFloat16) = default;
};

/// Bytes of one element: 1, 2, 4 or 8; 0 for a value that is not an ElementType.
constexpr std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kFloat64:
    case ElementType::kInt64:
      return 8;
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
    case ElementType::kInt16:
      return 2;
    case ElementType::kInt8:
    case ElementType::kUInt8:
      return 1;
  }
  return 0;
}

constexpr bool is_float(ElementType type) {
  return type >= ElementType::kFloat32 && type <= ElementType::kBFloat16;
}

constexpr bool is_valid(ElementType type) {
  return element_bytes(type) != 0;
}
constexpr bool is_valid(Reduction r) {
  return r >= Reduction::kSum && r <= Reduction::kBitXor;
}
constexpr bool is_valid(Encoding e) {
  return e == Encoding::kNone || e == Encoding::kFloat16 || e == Encoding::kBFloat16 ||
         is_scaled(e);
}
/// Whether elements of this type can be reduced so.
constexpr bool is_valid(ElementType type, Reduction r) {
  return is_valid(type) && is_valid(r) && !(is_float(type) && r >= Reduction::kBitAnd);
}

/// The names of command lines and reports: "float", "double", "half", "bfloat16", "int8", "uint8",
/// "int16", "int32", "int64"; "sum", "prod", "min", "max", "avg" (nccl-tests' names), "band",
/// "bor", "bxor" (MPI's); "none", "half", "bfloat16",
/// "int8", "int4". "?" for an invalid value.
std::string_view name(ElementType type);
std::string_view name(Reduction reduction);
std::string_view name(Encoding encoding);
std::optional<ElementType> parse_element_type(std::string_view name);
std::optional<Reduction> parse_reduction(std::string_view name);
std::optional<Encoding> parse_encoding(std::string_view name);

/// The ElementType of a C++ element type.
template <class T>
struct ElementTypeOf;
template <>
struct ElementTypeOf<float> {
  static constexpr ElementType kValue = ElementType::kFloat32;
};
template <>
struct ElementTypeOf<double> {
  static constexpr ElementType kValue = ElementType::kFloat64;
};
template <>
struct ElementTypeOf<Float16> {
  static constexpr ElementType kValue = ElementType::kFloat16;
};
template <>
struct ElementTypeOf<BFloat16> {
  static constexpr ElementType kValue = ElementType::kBFloat16;
};
template <>
struct ElementTypeOf<std::int32_t> {
  static constexpr ElementType kValue = ElementType::kInt32;
};
template <>
struct ElementTypeOf<std::int64_t> {
  static constexpr ElementType kValue = ElementType::kInt64;
};
template <>
struct ElementTypeOf<std::int8_t> {
  static constexpr ElementType kValue = ElementType::kInt8;
};
template <>
struct ElementTypeOf<std::uint8_t> {
  static constexpr ElementType kValue = ElementType::kUInt8;
};
template <>
struct ElementTypeOf<std::int16_t> {
  static constexpr ElementType kValue = ElementType::kInt16;
};

}  // namespace sluice
