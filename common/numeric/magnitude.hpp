// The largest magnitude of some values.
#pragma once

#include <cstddef>

#include <sluice/types.hpp>

namespace sluice::numeric {

/// Of so many values, at any address; NaN if one is. Not of floats of 2 bytes: as they are
/// accumulated, these are fp32.
double largest_magnitude(ElementType type, const std::byte* values, std::size_t count);

}  // namespace sluice::numeric
