#include "common/numeric/magnitude.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace sluice::numeric {
namespace {

template <class T>
double largest(const std::byte* values, std::size_t count) {
  double most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    const double size = std::fabs(static_cast<double>(value));
    if (!(size <= most)) most = size;
    if (std::isnan(most)) break;
  }
  return most;
}

}  // namespace

double largest_magnitude(ElementType type, const std::byte* values, std::size_t count) {
  switch (type) {
    case ElementType::kFloat64:
      return largest<double>(values, count);
    case ElementType::kInt64:
      return largest<std::int64_t>(values, count);
    case ElementType::kInt32:
      return largest<std::int32_t>(values, count);
    case ElementType::kInt16:
      return largest<std::int16_t>(values, count);
    case ElementType::kInt8:
      return largest<std::int8_t>(values, count);
    case ElementType::kUInt8:
      return largest<std::uint8_t>(values, count);
    default:
      return largest<float>(values, count);
  }
}

}  // namespace sluice::numeric
