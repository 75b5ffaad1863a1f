// Copies that bypass the caches. Included once per target, as block_reduction.cpp is.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/copy.cpp"
#include <algorithm>
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

using Keys = hn::ScalableTag<std::uint64_t>;

bool copy_rising(std::uint64_t* out, const std::uint64_t* in, std::size_t count, bool past_caches) {
  if (count == 0) return true;
  const Keys keys;
  const std::size_t vector = hn::Lanes(keys);
  bool rises = true;
  std::size_t at = 1;
  out[0] = in[0];
  const auto one_by_one = [&](std::size_t end) {
    for (; at < end; ++at) {
      rises = rises && in[at - 1] < in[at];
      out[at] = in[at];
    }
  };
  const std::size_t aligned =
      -reinterpret_cast<std::uintptr_t>(out + 1) % (hn::MaxLanes(keys) * sizeof *out) / sizeof *out;
  one_by_one(std::min(count, 1 + aligned));
  auto all_rise = hn::Eq(hn::Zero(keys), hn::Zero(keys));
  for (; at + vector <= count; at += vector) {
    const auto some = hn::LoadU(keys, in + at);
    all_rise = hn::And(all_rise, hn::Lt(hn::LoadU(keys, in + at - 1), some));
    if (past_caches)
      hn::Stream(some, keys, out + at);
    else
      hn::Store(some, keys, out + at);
  }
  one_by_one(count);
  return rises && hn::AllTrue(keys, all_rise);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(stream);
HWY_EXPORT(copy_rising);

void copy_past_caches(std::byte* out, const std::byte* in, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(stream)(out, in, size);
}

bool copy_rising(std::uint64_t* out, const std::uint64_t* in, std::size_t count, bool past_caches) {
  return HWY_DYNAMIC_DISPATCH(copy_rising)(out, in, count, past_caches);
}

void finish_copies_past_caches() {
  hwy::FlushStream();
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
