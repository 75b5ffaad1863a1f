// Copies past the caches. Included once per target, as block_reduction.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/copy.cpp"
#include <cstdint>
#include <cstring>

#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "common/numeric/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::ScalableTag<std::uint8_t>;

void stream(std::byte* out, const std::byte* in, std::size_t size) {
  constexpr std::size_t kVector = hn::MaxLanes(Bytes());
  const std::size_t vector = hn::Lanes(Bytes());
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(out) % kVector;
  if (size < before + vector) {
    std::memcpy(out, in, size);
    return;
  }
  std::memcpy(out, in, before);
  std::size_t at = before;
  for (; size - at >= vector; at += vector)
    hn::Stream(hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(in + at)), Bytes(),
               reinterpret_cast<std::uint8_t*>(out + at));
  std::memcpy(out + at, in + at, size - at);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(stream);

void copy_past_caches(std::byte* out, const std::byte* in, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(stream)(out, in, size);
}

void finish_copies_past_caches() {
  hwy::FlushStream();
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
