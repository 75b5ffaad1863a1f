// The largest magnitude of some values.
#pragma once

#include <cstddef>

#include <sluice/types.hpp>

namespace sluice::numeric {

/// The largest magnitude of so many values, at any address; NaN if one is NaN. Not for floats of 2
/// bytes, as these are accumulated as fp32.
double largest_magnitude(ElementType type, const std::byte* values, std::size_t count);

}  // namespace sluice::numeric
