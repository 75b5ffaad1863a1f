// The kernels against a plain scalar reference, bit for bit, on every instruction set of this
// machine. Data lies between pages that may not be touched, so that reading or writing a byte too
// far ends the test program.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/numeric/kernels.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/kernel_parts.hpp"

namespace numeric_tests {

using namespace sluice;
using numeric::block_reduction;
using numeric::BlockedTensor;
using numeric::mark_nonzero_blocks;
using parts::distinct_targets;
using parts::FencedMemory;
using parts::TargetScope;

namespace {

// ---------------------------------------------------------------- 16-bit floats by arithmetic

struct HalfFormat {
  int mantissa_bits;
  int exponent_min;  ///< of the smallest normal number

  int bias() const { return 1 - exponent_min; }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1 << (15 - mantissa_bits)) - 1) << mantissa_bits);
  }
  std::uint16_t quiet_bit() const { return static_cast<std::uint16_t>(1 << (mantissa_bits - 1)); }
  bool is_nan(std::uint16_t bits) const { return (bits & 0x7FFF) > infinity(); }
};
constexpr HalfFormat kHalf{10, -14};
constexpr HalfFormat kBrain{7, -126};

float decode(HalfFormat format, std::uint16_t bits) {
  const int m = format.mantissa_bits;
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const int magnitude = bits & 0x7FFF;
  if (magnitude >= format.infinity()) {
    const auto payload = static_cast<std::uint32_t>(magnitude - format.infinity());
    const std::uint32_t quiet = payload != 0 ? 0x0040'0000 : 0;
    return std::bit_cast<float>(sign | 0x7F80'0000 | quiet | payload << (23 - m));
  }
  const int exponent = magnitude >> m;
  const int mantissa = magnitude - (exponent << m) + (exponent != 0 ? 1 << m : 0);
  const double value = std::ldexp(mantissa, std::max(exponent, 1) - format.bias() - m);
  return static_cast<float>(sign != 0 ? -value : value);
}

std::uint16_t encode(HalfFormat format, float value) {
  const int m = format.mantissa_bits;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  if (std::isnan(value)) {
    const auto payload = static_cast<std::uint16_t>((bits & 0x007F'FFFF) >> (23 - m));
    return sign | format.infinity() | format.quiet_bit() | payload;
  }
  if (std::isinf(value)) return sign | format.infinity();
  if (value == 0) return sign;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int exponent = std::max(std::ilogb(magnitude), format.exponent_min);
  const double places = std::nearbyint(std::ldexp(magnitude, m - exponent));  // ties to even
  const int rounded = ((exponent - format.exponent_min) << m) + static_cast<int>(places);
  return sign | static_cast<std::uint16_t>(std::min<int>(rounded, format.infinity()));
}

// ---------------------------------------------------------------- the scalar reference

__extension__ using Int128 = __int128;

/// `Accumulator`: of all reductions but the average; `Total`: what the average's sum is exact in.
template <class T>
struct Scalar {
  using Accumulator = T;
  using Total = std::conditional_t<std::is_floating_point_v<T>, T, Int128>;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};
template <>
struct Scalar<Float16> {
  using Accumulator = float;
  using Total = float;
  static float widen(Float16 value) { return decode(kHalf, value.bits); }
  static Float16 narrow(float value) { return {encode(kHalf, value)}; }
};
template <>
struct Scalar<BFloat16> {
  using Accumulator = float;
  using Total = float;
  static float widen(BFloat16 value) { return decode(kBrain, value.bits); }
  static BFloat16 narrow(float value) { return {encode(kBrain, value)}; }
};
template <class T>
using Accumulator = typename Scalar<T>::Accumulator;

template <class A>
bool is_nan(A value) {
  if constexpr (std::is_floating_point_v<A>) return std::isnan(value);
  return false;
}

template <class A>
A reference_add(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
    return a + b;
  } else {
    using Wrapping = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  }
}

template <class A>
A reference_combine(Reduction reduction, A acc, A in) {
  if (reduction == Reduction::kMin) return in < acc || is_nan(in) ? in : acc;
  if (reduction == Reduction::kMax) return in > acc || is_nan(in) ? in : acc;
  if constexpr (std::is_integral_v<A>) {
    if (reduction == Reduction::kBitAnd) return static_cast<A>(acc & in);
    if (reduction == Reduction::kBitOr) return static_cast<A>(acc | in);
    if (reduction == Reduction::kBitXor) return static_cast<A>(acc ^ in);
    if (reduction == Reduction::kProduct)
      return static_cast<A>(static_cast<std::uint64_t>(acc) * static_cast<std::uint64_t>(in));
  } else if (reduction == Reduction::kProduct) {
    return acc * in;
  }
  return reference_add(acc, in);
}

/// The value whose bits are the lowest ones of `bits`.
template <class T>
T from_bits(std::uint64_t bits) {
  if constexpr (sizeof(T) == 1)
    return std::bit_cast<T>(static_cast<std::uint8_t>(bits));
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<T>(static_cast<std::uint16_t>(bits));
  else if constexpr (sizeof(T) == 4)
    return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  else
    return std::bit_cast<T>(bits);
}

template <class T>
T negative_zero() {
  return from_bits<T>(std::uint64_t{1} << (8 * sizeof(T) - 1));
}

template <class T>
bool is_zero(T value) {
  return Scalar<T>::widen(value) == 0;
}

/// As a result has it: +0 for a float's -0, and NaN quiet (of 16 bits it is already).
template <class T>
T finished(T value) {
  if (is_float(ElementTypeOf<T>::kValue) && is_zero(value)) return T{};
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    constexpr Bits kQuiet = Bits{1} << (std::numeric_limits<T>::digits - 2);
    if (std::isnan(value)) return std::bit_cast<T>(std::bit_cast<Bits>(value) | kQuiet);
  }
  return value;
}

template <class T>
T reference_average(const std::vector<std::vector<T>>& ranks, std::size_t element,
                    std::uint32_t divisor) {
  using Total = typename Scalar<T>::Total;
  Total total = Scalar<T>::widen(ranks[0][element]);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    total += Scalar<T>::widen(ranks[rank][element]);
  return Scalar<T>::narrow(static_cast<Accumulator<T>>(total / static_cast<Total>(divisor)));
}

/// The ranks' values, then a zero for ranks that sent none, as one.
template <class T>
T reference(Reduction reduction, const std::vector<std::vector<T>>& ranks, std::size_t element,
            bool zero_too, std::uint32_t divisor) {
  using A = Accumulator<T>;
  if (reduction == Reduction::kAverage) return finished(reference_average(ranks, element, divisor));
  A acc = Scalar<T>::widen(ranks[0][element]);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    acc = reference_combine<A>(reduction, acc, Scalar<T>::widen(ranks[rank][element]));
  if (zero_too) acc = reference_combine<A>(reduction, acc, A{0});
  return finished(Scalar<T>::narrow(acc));
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// ---------------------------------------------------------------- values

using Random = std::mt19937_64;

template <class T>
std::vector<T> special_values() {
  if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    return {T(0),
            T(1),
            T(-1),
            T(7),
            T(-7),
            Limits::max(),
            Limits::min(),
            T(Limits::max() - 1),
            T(Limits::min() + 1)};
  } else if constexpr (std::is_floating_point_v<T>) {
    using Limits = std::numeric_limits<T>;
    const T epsilon = Limits::epsilon();
    return {0,
            -T{0},
            1,
            -1,
            1 + epsilon,
            epsilon / 2,
            -epsilon / 2,
            Limits::max(),
            Limits::lowest(),
            Limits::min(),
            Limits::denorm_min(),
            -Limits::denorm_min(),
            Limits::infinity(),
            -Limits::infinity(),
            Limits::quiet_NaN(),
            -Limits::quiet_NaN()};
  } else {
    const HalfFormat format = std::is_same_v<T, Float16> ? kHalf : kBrain;
    const std::uint16_t infinity = format.infinity();
    std::vector<T> values;
    for (int sign : {0, 0x8000})
      for (int bits : {0, 1, 2, format.quiet_bit() * 2 - 1, format.quiet_bit() * 2, infinity - 1,
                       int{infinity}, infinity + 1, infinity + format.quiet_bit(), 0x7FFF, 0x3C00,
                       0x3C01, 0x3F80, 0x3F81})
        values.push_back({static_cast<std::uint16_t>(sign | bits)});
    return values;
  }
}

/// Values near one another, whose sums need rounding.
template <class T>
T moderate_value(Random& random) {
  const double value = std::uniform_real_distribution<double>(-100, 100)(random);
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
    return Scalar<T>::narrow(static_cast<float>(value));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<int>(value));  // unsigned: modulo
  else
    return static_cast<T>(value);
}

template <class T>
std::vector<T> random_values(Random& random, std::size_t count) {
  static const std::vector<T> kSpecial = special_values<T>();
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    switch (random() % 8) {
      case 0:
        values.push_back(kSpecial[random() % kSpecial.size()]);
        break;
      case 1:
        values.push_back(from_bits<T>(random()));
        break;
      default:
        values.push_back(moderate_value<T>(random));
    }
  }
  return values;
}

// ---------------------------------------------------------------- running the kernels

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kMostElements = 300;
constexpr std::size_t kMostBytes = kMostElements * sizeof(double) + 8;

struct Buffers {
  FencedMemory in{kMostBytes};
  FencedMemory acc{2 * kMostBytes};
  FencedMemory out{kMostBytes};
};

/// Reduces as an aggregator does; true when nothing around the accumulator and output changed.
template <class T>
bool reduce(Buffers& buffers, int placement, Reduction reduction,
            const std::vector<std::vector<T>>& ranks, bool zero_too, std::uint32_t divisor,
            std::vector<T>& result) {
  const auto& kernels = block_reduction(ElementTypeOf<T>::kValue, reduction);
  const std::size_t count = result.size();
  const std::size_t bytes = count * sizeof(T);
  std::byte* in = buffers.in.place(placement, bytes);
  std::byte* out = buffers.out.place(placement, bytes);
  std::byte* acc = buffers.acc.begin();
  buffers.out.fill(kGuard);
  buffers.acc.fill(kGuard);

  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (bytes != 0) std::memcpy(in, ranks[rank].data(), bytes);
    (rank == 0 ? kernels.load : kernels.combine)(acc, in, count);
  }
  if (zero_too && kernels.combine_zero != nullptr) kernels.combine_zero(acc, count);
  kernels.store(out, acc, count, divisor);
  if (bytes != 0) std::memcpy(result.data(), out, bytes);
  const std::size_t room = numeric::accumulator_bytes(ElementTypeOf<T>::kValue);
  return buffers.acc.holds_around(acc, count * room, kGuard) &&
         buffers.out.holds_around(out, bytes, kGuard);
}

/// Runs `acc` through the sum's store kernel: the rounding alone.
template <class T>
std::vector<std::uint16_t> stored_bits(const std::vector<float>& values) {
  constexpr std::size_t kChunk = 1024;
  alignas(numeric::kAccumulatorAlignment) std::array<float, kChunk> acc{};
  std::vector<std::uint16_t> bits(values.size());
  for (std::size_t i = 0; i < values.size(); i += kChunk) {
    const std::size_t count = std::min(kChunk, values.size() - i);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i), count, acc.begin());
    block_reduction(ElementTypeOf<T>::kValue, Reduction::kSum)
        .store(reinterpret_cast<std::byte*>(bits.data() + i), acc.data(), count, 1);
  }
  return bits;
}

template <class T>
constexpr HalfFormat format_of() {
  return std::is_same_v<T, Float16> ? kHalf : kBrain;
}

constexpr std::array kReductions{Reduction::kSum,     Reduction::kMin,     Reduction::kMax,
                                 Reduction::kAverage, Reduction::kProduct, Reduction::kBitAnd,
                                 Reduction::kBitOr,   Reduction::kBitXor};

}  // namespace

TEST_CASE("the instruction set in use is one of the tested ones") {
  std::set<std::string> names;
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    names.insert(numeric::simd_target());
  }
  CHECK(names.size() == distinct_targets().size());
  CHECK(names.count(numeric::simd_target()) == 1);
  std::string list;
  for (const std::string& name : names) list += " " + name;
  WARN("tested targets:" << list);
}

TEMPLATE_TEST_CASE("reductions equal the scalar reference in rank order", "", float, double,
                   Float16, BFloat16, std::int32_t, std::int64_t, std::int8_t, std::uint8_t,
                   std::int16_t) {
  using T = TestType;
  Random random(1);
  Buffers buffers;
  for (std::size_t count = 0; count <= kMostElements; ++count) {
    for (const Reduction reduction : kReductions) {
      if (!is_valid(ElementTypeOf<T>::kValue, reduction)) continue;
      std::vector<std::vector<T>> ranks(1 + random() % 5);
      for (auto& rank : ranks) rank = random_values<T>(random, count);
      const bool zero_too = random() % 2 == 0;
      const auto divisor = static_cast<std::uint32_t>(ranks.size()) + (zero_too ? 2 : 0);
      const bool sums = reduction == Reduction::kSum || reduction == Reduction::kAverage;
      // IEEE 754 leaves open which NaN a sum or product of two is; everything else is exact.
      const bool any_nan = sums || reduction == Reduction::kProduct;
      std::vector<T> expected(count);
      for (std::size_t i = 0; i < count; ++i)
        expected[i] = reference(reduction, ranks, i, zero_too && !sums, divisor);

      for (const std::int64_t target : distinct_targets()) {
        const TargetScope scope(target);
        for (int placement = 0; placement < FencedMemory::kPlacements; ++placement) {
          std::vector<T> result(count);
          const bool kept_guards =
              reduce(buffers, placement, reduction, ranks, zero_too, divisor, result);
          const auto same = [&](const T& a, const T& b) {
            const bool both_nan = is_nan(Scalar<T>::widen(a)) && is_nan(Scalar<T>::widen(b));
            return (any_nan && both_nan) || same_bits(a, b);
          };
          const bool equal =
              std::equal(result.begin(), result.end(), expected.begin(), expected.end(), same);
          INFO(numeric::simd_target()
               << " " << name(reduction) << " count " << count << " placement " << placement);
          REQUIRE(kept_guards);
          REQUIRE(equal);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("one contribution comes back as it went, -0 and NaN aside", "", Float16,
                   BFloat16) {
  const HalfFormat format = format_of<TestType>();
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  FencedMemory acc(patterns.size() * sizeof(float));
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    for (const Reduction reduction : kReductions) {
      if (!is_valid(ElementTypeOf<TestType>::kValue, reduction)) continue;
      const auto& kernels = block_reduction(ElementTypeOf<TestType>::kValue, reduction);
      std::vector<std::uint16_t> out(patterns.size());
      kernels.load(acc.begin(), reinterpret_cast<const std::byte*>(patterns.data()), out.size());
      kernels.store(reinterpret_cast<std::byte*>(out.data()), acc.begin(), out.size(), 1);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::uint16_t bits = patterns[i] == 0x8000 ? 0 : patterns[i];
        wrong += out[i] != (format.is_nan(bits) ? bits | format.quiet_bit() : bits);
      }
      INFO(numeric::simd_target() << " " << name(reduction));
      CHECK(wrong == 0);
    }
  }
}

TEMPLATE_TEST_CASE("16-bit floats widen exactly", "", Float16, BFloat16) {
  const HalfFormat format = format_of<TestType>();
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  FencedMemory acc(patterns.size() * sizeof(float));
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    block_reduction(ElementTypeOf<TestType>::kValue, Reduction::kSum)
        .load(acc.begin(), reinterpret_cast<const std::byte*>(patterns.data()), patterns.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      float value;
      std::memcpy(&value, acc.begin() + i * sizeof value, sizeof value);
      const float expected = decode(format, patterns[i]);
      wrong += format.is_nan(patterns[i]) ? !std::isnan(value) : !same_bits(value, expected);
    }
    INFO(numeric::simd_target());
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("16-bit floats round to nearest, ties to even", "", Float16, BFloat16) {
  const HalfFormat format = format_of<TestType>();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values;
  std::vector<std::uint16_t> expected;
  for (int sign : {0, 0x8000}) {
    for (std::uint16_t lower = 0; lower < format.infinity(); ++lower) {
      // The number above; above the largest, the power of two that infinity stands in for.
      const auto upper = static_cast<std::uint16_t>(lower + 1);
      const double low = decode(format, lower);
      const double high = upper == format.infinity() ? std::ldexp(1, format.bias() + 1)
                                                     : static_cast<double>(decode(format, upper));
      const auto middle = static_cast<float>((low + high) / 2);
      const std::uint16_t even = lower % 2 == 0 ? lower : upper;
      const std::array<std::pair<float, std::uint16_t>, 4> cases{
          {{static_cast<float>(low), lower},
           {std::nextafter(middle, 0.0F), lower},
           {middle, even},
           {std::nextafter(middle, kInfinity), upper}}};
      for (const auto& [value, bits] : cases) {
        values.push_back(sign != 0 ? -value : value);
        expected.push_back(bits == 0 ? bits : static_cast<std::uint16_t>(sign | bits));
      }
    }
  }
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    INFO(numeric::simd_target());
    CHECK((stored_bits<TestType>(values) == expected));
  }
}

TEMPLATE_TEST_CASE("16-bit floats round any fp32 as arithmetic says", "", Float16, BFloat16) {
  const HalfFormat format = format_of<TestType>();
  Random random(2);
  std::vector<float> values;
  std::vector<std::uint16_t> expected;
  for (int i = 0; i < 1 << 20; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    if (i % 2 == 0) bits = (bits & 0x9FFF'FFFF) + 0x3000'0000;  // where fp16 has numbers
    values.push_back(std::bit_cast<float>(bits));
    const std::uint16_t rounded = encode(format, values.back());
    expected.push_back(rounded == 0x8000 ? 0 : rounded);
  }
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    INFO(numeric::simd_target());
    CHECK((stored_bits<TestType>(values) == expected));
  }
}

namespace {

/// One element of each rank, reduced by the best kernels.
template <class T>
T reduce_one(Reduction reduction, const std::vector<T>& ranks, bool zero_too = false) {
  Buffers buffers;
  std::vector<std::vector<T>> blocks;
  for (const T value : ranks) blocks.push_back({value});
  std::vector<T> result(1);
  REQUIRE(reduce(buffers, 0, reduction, blocks, zero_too, static_cast<std::uint32_t>(ranks.size()),
                 result));
  return result[0];
}

}  // namespace

TEST_CASE("integers wrap, but for their average, which truncates towards zero") {
  using Limits = std::numeric_limits<std::int32_t>;
  CHECK(reduce_one<std::int32_t>(Reduction::kSum, {Limits::max(), 1}) == Limits::min());
  CHECK(reduce_one<std::int32_t>(Reduction::kAverage, {-7, 0}) == -3);
  CHECK(reduce_one<std::int32_t>(Reduction::kAverage, {7, 0}) == 3);
  CHECK(reduce_one<std::int32_t>(Reduction::kAverage, {Limits::max(), 1}) == 1 << 30);
  CHECK(reduce_one<std::int64_t>(Reduction::kAverage, {-8, 0, 0}) == -2);
  CHECK(reduce_one<std::int8_t>(Reduction::kSum, {127, 1}) == -128);
  CHECK(reduce_one<std::uint8_t>(Reduction::kAverage, {200, 100}) == 150);
  CHECK(reduce_one<std::int16_t>(Reduction::kProduct, {300, 300}) == 24'464);
  CHECK(reduce_one<std::uint8_t>(Reduction::kMax, {200, 100}) == 200);
}

TEMPLATE_TEST_CASE("the average of 256 ranks' integers is exact", "", std::int8_t, std::uint8_t,
                   std::int16_t, std::int32_t, std::int64_t) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    INFO(numeric::simd_target());
    for (const T extreme : {Limits::max(), Limits::min()})
      CHECK(reduce_one(Reduction::kAverage, std::vector<T>(256, extreme)) == extreme);
    const T large = Limits::max() / 4 * 3;
    CHECK(reduce_one<T>(Reduction::kAverage, {large, large}) == large);
    CHECK(reduce_one<T>(Reduction::kAverage, {large, 0, large, large, 1}) ==
          static_cast<T>((Int128{large} * 3 + 1) / 5));
  }
}

TEMPLATE_TEST_CASE("no reduction of floats is -0, in rows of any length", "", float, double,
                   Float16, BFloat16) {
  using T = TestType;
  Buffers buffers;
  for (const Reduction reduction : kReductions) {
    if (!is_valid(ElementTypeOf<T>::kValue, reduction)) continue;
    for (const std::size_t count : {1U, 3U, 16U, 33U, 256U})
      for (const std::int64_t target : distinct_targets()) {
        const TargetScope scope(target);
        INFO(numeric::simd_target() << " " << name(reduction) << " of " << count);
        std::vector<T> result(count);
        const std::vector<std::vector<T>> zeros(3, std::vector<T>(count, negative_zero<T>()));
        REQUIRE(reduce(buffers, 0, reduction, zeros, false, 3, result));
        CHECK(std::all_of(result.begin(), result.end(), [](T x) { return same_bits(x, T{}); }));
      }
  }
  // What becomes -0 only as the result is rounded.
  const T tiny = from_bits<T>(1);
  const T minus_tiny = from_bits<T>((std::uint64_t{1} << (8 * sizeof(T) - 1)) + 1);
  CHECK(same_bits(reduce_one<T>(Reduction::kProduct, {tiny, minus_tiny}), T{}));
  CHECK(same_bits(reduce_one<T>(Reduction::kAverage, {minus_tiny, T{}, T{}}), T{}));
}

TEST_CASE("a copy past the caches is a copy, wherever it begins") {
  constexpr std::size_t kMost = 1024;
  std::mt19937_64 random(18);
  std::vector<std::byte> in(kMost + 64);
  for (std::byte& b : in) b = static_cast<std::byte>(random());
  for (std::size_t begin = 0; begin < 64; ++begin)
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64},
                                   std::size_t{65}, std::size_t{200}, kMost - 64}) {
      std::vector<std::byte> out(kMost, std::byte{0x5a});
      std::vector<std::byte> expected = out;
      std::copy_n(in.begin() + 7, size, expected.begin() + static_cast<std::ptrdiff_t>(begin));
      numeric::copy_past_caches(out.data() + begin, in.data() + 7, size);
      REQUIRE(out == expected);
    }
}

TEST_CASE("keys are copied, and found to rise or not") {
  std::mt19937_64 random(19);
  for (std::size_t begin = 0; begin < 9; ++begin)
    for (std::size_t count = 0; count < 40; ++count)
      for (const bool past_caches : {false, true}) {
        std::vector<std::uint64_t> in{random() >> 1};
        while (in.size() < count) in.push_back(in.back() + 1 + (random() >> 8));
        in.resize(count);
        const auto copies = [&] {
          std::vector<std::uint64_t> out(64, 5);
          std::vector<std::uint64_t> expected = out;
          std::ranges::copy(in, expected.begin() + static_cast<std::ptrdiff_t>(begin));
          const bool rise = numeric::copy_rising(out.data() + begin, in.data(), count, past_caches);
          REQUIRE(out == expected);
          return rise;
        };
        REQUIRE(copies());
        for (std::size_t i = 1; i < count; ++i) {
          const std::uint64_t key = std::exchange(in[i], random() % 2 == 0 ? in[i - 1] : 0);
          REQUIRE(!copies());
          in[i] = key;
        }
      }
}

TEST_CASE("halves are summed in fp32 and rounded once") {
  const Float16 one{0x3C00};
  const Float16 half_place{0x1000};  // 2^-11, half of one's last place
  const std::vector<Float16> ranks{one, half_place, half_place};
  CHECK(reduce_one(Reduction::kSum, ranks).bits == 0x3C01);  // rounded twice: 0x3C00
  const std::vector<Float16> large{{0x7BFF}, {0x7BFF}};
  CHECK(reduce_one(Reduction::kAverage, large).bits == 0x7BFF);  // the sum would be infinite
}

TEST_CASE("minimum and maximum keep NaN for good") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    CHECK(std::isnan(reduce_one<float>(reduction, {kNan, 1.0F, -1.0F}, true)));
    CHECK(std::isnan(reduce_one<float>(reduction, {1.0F, kNan, -1.0F}, true)));
  }
  CHECK(reduce_one<float>(Reduction::kMin, {2.0F, 1.0F}, true) == 0.0F);
  CHECK(reduce_one<float>(Reduction::kMin, {2.0F, -1.0F}, true) == -1.0F);
  CHECK(reduce_one<float>(Reduction::kMax, {-2.0F, -1.0F}, true) == 0.0F);
}

TEST_CASE("absent zeros matter to minimum, maximum, product and bitwise and only") {
  for (unsigned value = 1; value <= 9; ++value) {
    const auto type = static_cast<ElementType>(value);
    CHECK(block_reduction(type, Reduction::kSum).combine_zero == nullptr);
    CHECK(block_reduction(type, Reduction::kAverage).combine_zero == nullptr);
    CHECK(block_reduction(type, Reduction::kMin).combine_zero != nullptr);
    CHECK(block_reduction(type, Reduction::kMax).combine_zero != nullptr);
    CHECK(block_reduction(type, Reduction::kProduct).combine_zero != nullptr);
    if (is_float(type)) continue;
    CHECK(block_reduction(type, Reduction::kBitAnd).combine_zero != nullptr);
    CHECK(block_reduction(type, Reduction::kBitOr).combine_zero == nullptr);
    CHECK(block_reduction(type, Reduction::kBitXor).combine_zero == nullptr);
  }
}

// ---------------------------------------------------------------- the search

namespace {

template <class T>
bool is_negative_zero(T value) {
  if constexpr (std::is_integral_v<T>) return false;
  return is_zero(value) && std::signbit(Scalar<T>::widen(value));
}

struct Marks {
  std::vector<std::uint64_t> bits;
  bool negative_zero = false;
  bool operator==(const Marks&) const = default;
};

/// Of a map whose bits are those of `before`.
Marks marks_of(const BlockedTensor& tensor, std::uint32_t first, std::uint32_t end,
               std::vector<std::uint64_t> before) {
  Marks marks{std::move(before)};
  marks.negative_zero = mark_nonzero_blocks(tensor, first, end, marks.bits.data());
  return marks;
}

std::vector<std::uint64_t> empty_map(const BlockedTensor& tensor) {
  return std::vector<std::uint64_t>(tensor.block_count() / 64 + 1);
}

template <class T>
Marks reference_marks(const std::vector<T>& values, std::uint32_t block_elements,
                      std::uint32_t first, std::uint32_t end, std::vector<std::uint64_t> before) {
  Marks marks{std::move(before)};
  for (std::size_t block = first; block < end; ++block) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(block * block_elements);
    const auto behind = begin + std::min<std::ptrdiff_t>(block_elements, values.end() - begin);
    if (!std::all_of(begin, behind, is_zero<T>))
      marks.bits[block / 64] |= std::uint64_t{1} << (block % 64);
    else
      marks.negative_zero |= std::any_of(begin, behind, is_negative_zero<T>);
  }
  return marks;
}

template <class T>
T non_zero_value(Random& random) {
  static const std::vector<T> kSpecial = special_values<T>();
  T value = kSpecial[random() % kSpecial.size()];
  while (is_zero(value)) value = from_bits<T>(random());
  return value;
}

/// Zeros, in which a share of the blocks holds one other value, and a share of them a -0.
template <class T>
std::vector<T> sparse_values(Random& random, std::size_t count, std::uint32_t block_elements,
                             double density, double negative_share) {
  std::bernoulli_distribution is_dense(density);
  std::bernoulli_distribution has_negative(negative_share);
  std::vector<T> values(count);
  for (std::size_t begin = 0; begin < count; begin += block_elements) {
    const std::size_t size = std::min<std::size_t>(block_elements, count - begin);
    if (!std::is_integral_v<T> && has_negative(random))
      values[begin + random() % size] = negative_zero<T>();
    if (is_dense(random)) values[begin + random() % size] = non_zero_value<T>(random);
  }
  return values;
}

constexpr std::size_t kSearchBytes = 64 * 1024;

}  // namespace

TEMPLATE_TEST_CASE("the search finds what a plain loop finds", "", float, double, Float16, BFloat16,
                   std::int32_t, std::int64_t, std::uint8_t, std::int16_t) {
  using T = TestType;
  Random random(3);
  FencedMemory memory(kSearchBytes);
  for (int round = 0; round < 600; ++round) {
    constexpr std::array<std::uint32_t, 10> kBlocks{1, 2, 3, 7, 16, 31, 64, 100, 256, 1000};
    const std::uint32_t block_elements = kBlocks[random() % kBlocks.size()];
    const std::size_t most = std::min<std::size_t>(20 * block_elements, 64000 / sizeof(T));
    const std::size_t count = random() % (most + 1);
    const double density = std::array{0.0, 0.05, 0.3, 1.0}[random() % 4];
    const double negative_share = std::array{0.0, 0.1, 1.0}[random() % 3];
    const auto values = sparse_values<T>(random, count, block_elements, density, negative_share);
    for (const std::int64_t target : distinct_targets()) {
      const TargetScope scope(target);
      const int placement = round % FencedMemory::kPlacements;
      memory.fill(kGuard);
      std::byte* data = memory.place(placement, count * sizeof(T));
      if (count != 0) std::memcpy(data, values.data(), count * sizeof(T));
      const BlockedTensor tensor{data, count, block_elements, ElementTypeOf<T>::kValue};
      bool equal = true;
      const auto some_bits = std::vector<std::uint64_t>(empty_map(tensor).size(), random());
      for (std::uint32_t first = 0; first <= tensor.block_count(); ++first) {
        const auto room = tensor.block_count() - first + 1;
        const auto end = static_cast<std::uint32_t>(first + random() % room);
        equal &= marks_of(tensor, first, end, some_bits) ==
                 reference_marks(values, block_elements, first, end, some_bits);
      }
      INFO(numeric::simd_target() << " blocks of " << block_elements << ", " << count
                                  << " elements, round " << round);
      REQUIRE(equal);
    }
  }
}

TEMPLATE_TEST_CASE("the search sees each element of a block alone", "", float, double, Float16,
                   BFloat16, std::int32_t, std::int64_t, std::uint8_t, std::int16_t) {
  using T = TestType;
  Random random(4);
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    for (const std::size_t size : {1U, 5U, 33U, 130U, 256U, 300U}) {
      std::vector<T> values(2 * size);
      const BlockedTensor tensor{reinterpret_cast<const std::byte*>(values.data()), values.size(),
                                 static_cast<std::uint32_t>(size), ElementTypeOf<T>::kValue};
      bool seen = true;
      for (std::size_t i = 0; i < size; ++i) {
        values[size + i] = non_zero_value<T>(random);
        const Marks marks = marks_of(tensor, 0, 2, empty_map(tensor));
        values[size + i] = T{};
        seen &= marks.bits[0] == 0b10 && !marks.negative_zero;
      }
      INFO(numeric::simd_target() << " blocks of " << size);
      CHECK(seen);
    }
  }
}

TEST_CASE("a -0 counts only in blocks that are zero") {
  for (const std::int64_t target : distinct_targets()) {
    const TargetScope scope(target);
    std::vector<float> values(1024);
    const BlockedTensor tensor{reinterpret_cast<const std::byte*>(values.data()), values.size(),
                               256, ElementType::kFloat32};
    values[300] = -0.0F;
    values[700] = -0.0F;
    values[701] = std::numeric_limits<float>::denorm_min();
    INFO(numeric::simd_target());
    const auto marked = [&](std::uint32_t first, std::uint32_t end) {
      return marks_of(tensor, first, end, empty_map(tensor));
    };
    CHECK(marked(0, 4) == Marks{{0b100}, true});
    CHECK(marked(0, 1) == Marks{{0}, false});
    CHECK(marked(2, 3) == Marks{{0b100}, false});
    CHECK(marked(1, 2) == Marks{{0}, true});
    CHECK(marked(3, 3) == Marks{{0}, false});
  }
}

TEST_CASE("an integer's sign bit is a value like any other") {
  const std::vector<std::int32_t> values{0, 0, std::numeric_limits<std::int32_t>::min(), 0};
  const BlockedTensor tensor{reinterpret_cast<const std::byte*>(values.data()), values.size(), 1,
                             ElementType::kInt32};
  CHECK(marks_of(tensor, 0, 4, empty_map(tensor)) == Marks{{0b100}, false});
}

}  // namespace numeric_tests
