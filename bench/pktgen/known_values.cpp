#include "bench/pktgen/known_values.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

#include "bench/perf/element.hpp"

namespace sluice::pktgen {
namespace {

/// Writes a whole number as an element, rounded to nearest if the type does not have it. Up to
/// 2^24.
void write_number(ElementType type, std::uint32_t number, std::byte* out) {
  perf::with_type(type, [&]<class T>() {
    T element;
    if constexpr (std::is_same_v<T, Float16>)
      element = perf::to_float16(static_cast<float>(number));
    else if constexpr (std::is_same_v<T, BFloat16>)
      element = perf::to_bfloat16(static_cast<float>(number));
    else
      element = static_cast<T>(number);
    std::memcpy(out, &element, sizeof element);
  });
}

}  // namespace

KnownValues::KnownValues(ElementType type, std::uint32_t block_elements)
    : type_(type),
      element_bytes_(element_bytes(type)),
      block_bytes_(block_elements * element_bytes_),
      sequence_(block_bytes_ + kPeriod * element_bytes_) {
  for (std::uint32_t e = 0; e < block_elements + kPeriod; ++e)
    write_number(type, 1 + e % kPeriod, sequence_.data() + e * element_bytes_);
}

bool KnownValues::is_sum(std::span<const std::byte> sums, const RankSet& ranks,
                         BlockIndex b) const {
  std::array<std::uint32_t, kPeriod> totals{};
  ranks.for_each([&](Rank r) {
    for (std::uint32_t e = 0; e < kPeriod; ++e) totals[e] += 1 + (phase(r, b) + e) % kPeriod;
  });
  std::array<std::byte, kPeriod * sizeof(double)> expected;
  for (std::uint32_t e = 0; e < kPeriod; ++e)
    write_number(type_, totals[e], expected.data() + e * element_bytes_);

  const std::size_t period_bytes = kPeriod * element_bytes_;
  for (std::size_t at = 0; at < sums.size(); at += period_bytes)
    if (std::memcmp(sums.data() + at, expected.data(), std::min(period_bytes, sums.size() - at)) !=
        0)
      return false;
  return sums.size() == block_bytes_;
}

}  // namespace sluice::pktgen
