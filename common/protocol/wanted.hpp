// Which sums a rank wants of an op, as its Descriptor says.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/protocol/geometry.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

/// Whether it wants an element of block b.
inline bool wants(const wire::Descriptor& descriptor, const Geometry& geometry, BlockIndex b) {
  if ((descriptor.flags & wire::kWantsPart) == 0) return true;
  const std::uint64_t begin = descriptor.begin;
  const std::uint64_t count = descriptor.count;
  const std::uint64_t stride = descriptor.stride;
  const std::uint64_t first = std::uint64_t{b.value} * geometry.block_elements;
  const std::uint64_t end = first + geometry.elements_of(b);
  if (count == 0 || end <= begin) return false;
  const std::uint64_t from = std::max(first, begin);
  const std::uint64_t offset = stride == 0 ? from - begin : (from - begin) % stride;
  return offset < count || (stride != 0 && stride - offset < end - from);
}

}  // namespace sluice
