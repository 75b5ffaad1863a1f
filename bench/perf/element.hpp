// Elements one by one, in plain scalar code: the reference must share nothing with the kernels that
// it checks.
#pragma once

#include <cstdint>

#include <sluice/types.hpp>

namespace sluice::perf {

float to_float(Float16 value);
float to_float(BFloat16 value);

/// Rounds to nearest, ties to even; infinity beyond the largest finite value.
Float16 to_float16(float value);
BFloat16 to_bfloat16(float value);

/// Calls `action.template operator()<T>()` with the C++ type of a valid ElementType.
template <class Action>
decltype(auto) with_type(ElementType type, Action&& action) {
  switch (type) {
    case ElementType::kFloat64:
      return action.template operator()<double>();
    case ElementType::kFloat16:
      return action.template operator()<Float16>();
    case ElementType::kBFloat16:
      return action.template operator()<BFloat16>();
    case ElementType::kInt32:
      return action.template operator()<std::int32_t>();
    case ElementType::kInt64:
      return action.template operator()<std::int64_t>();
    case ElementType::kInt8:
      return action.template operator()<std::int8_t>();
    case ElementType::kUInt8:
      return action.template operator()<std::uint8_t>();
    case ElementType::kInt16:
      return action.template operator()<std::int16_t>();
    case ElementType::kFloat32:
      break;
  }
  return action.template operator()<float>();
}

}  // namespace sluice::perf
