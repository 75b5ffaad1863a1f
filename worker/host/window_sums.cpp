#include "worker/host/window_sums.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "common/numeric/magnitude.hpp"

namespace sluice::worker::host {
namespace {

/// How many bytes of a core's cache the sums use.
constexpr std::size_t kWindowBytes = std::size_t{64} << 10;
/// How many words of bits are looked at together.
constexpr std::size_t kGroup = 64;

constexpr std::size_t divided_up(std::size_t number, std::size_t by) {
  return (number + by - 1) / by;
}

std::byte* allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = numeric::kAccumulatorAlignment;
  auto* const memory = static_cast<std::byte*>(
      std::aligned_alloc(kAlignment, divided_up(bytes, kAlignment) * kAlignment));
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void WindowSums::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

WindowSums::WindowSums(const KeyedGeometry& geometry, ElementType type, Reduction reduction,
                       std::uint32_t divisor)
    : geometry_(geometry),
      kernels_(numeric::block_reduction(geometry.type.element(), reduction)),
      divisor_(divisor),
      is_encoded_(geometry.type != type),
      is_average_(reduction == Reduction::kAverage),
      is_float_(type == ElementType::kFloat32 && !is_encoded_ && geometry.row_elements == 1 &&
                (reduction == Reduction::kSum || is_average_)),
      row_(geometry.row_elements),
      sum_bytes_(row_ * numeric::accumulator_bytes(geometry.type.element(), reduction)),
      most_(is_encoded_ ? geometry.chunk_keys()
                        : std::max(geometry.chunk_keys(), kWindowBytes / sum_bytes_)),
      sums_(allocate((most_ + 1) * sum_bytes_)),  // one more is read, see take_floats()
      encoded_(is_encoded_ ? most_ * row_ * sizeof(double) : 0),
      rows_(encoded_.size()),
      widened_(row_ * sizeof(double)),
      has_(divided_up(most_, 64)),
      touched_(divided_up(has_.size(), kGroup) * kGroup) {}

std::uint64_t WindowSums::begin_at(std::uint64_t key, std::uint64_t end) {
  first_ = geometry_.chunk_of(key) << geometry_.chunk_bits;
  size_ = std::min<std::uint64_t>(most_, end - first_);
  return first_ + size_;
}

// --------------------------------------------------------------------------------------- adding
std::size_t WindowSums::add(std::span<const std::uint64_t> keys, const std::byte* rows,
                            numeric::Rounding rounding) {
  if (is_float_) return add_floats(keys, rows);
  if (is_encoded_) {
    const auto is_behind = [this](std::uint64_t key) { return key - first_ >= size_; };
    keys = keys.first(std::min(keys.size(), most_));  // a broken peer's keys may not be ascending
    const auto end = std::find_if(keys.begin(), keys.end(), is_behind);
    keys = keys.first(static_cast<std::size_t>(end - keys.begin()));
    if (keys.empty()) return 0;
    rows = as_they_travel(rows, keys.size() * row_, rounding);
  }
  std::size_t count = 0;
  for (; count < keys.size(); ++count) {
    const std::uint64_t offset = keys[count] - first_;
    if (offset >= size_) break;
    std::uint64_t& word = has_[offset / 64];
    const std::uint64_t bit = std::uint64_t{1} << (offset % 64);
    ((word & bit) != 0 ? kernels_.combine : kernels_.load)(
        sums_.get() + offset * sum_bytes_, rows + count * geometry_.row_bytes(), row_);
    word |= bit;
    touched_[offset / 64] = 1;
  }
  return count;
}

const std::byte* WindowSums::as_they_travel(const std::byte* rows, std::size_t elements,
                                            numeric::Rounding rounding) {
  const auto scale = numeric::encode(geometry_.type, encoded_.data(), rows, elements, rounding);
  if (!geometry_.type.is_scaled()) return encoded_.data();
  numeric::decode(geometry_.type, rows_.data(), encoded_.data(), {elements, 0, elements}, scale);
  return rows_.data();
}

/// The most common case: to call a kernel for each key would take longer than the sum. There is no
/// branch on whether a key has a sum already, as a processor cannot predict it.
std::size_t WindowSums::add_floats(std::span<const std::uint64_t> keys, const std::byte* rows) {
  auto* const sums = reinterpret_cast<float*>(sums_.get());
  std::uint64_t* const has = has_.data();
  std::uint8_t* const touched = touched_.data();
  const std::uint64_t first = first_, size = size_;
  std::size_t count = 0;
  for (; count < keys.size(); ++count) {
    const std::uint64_t offset = keys[count] - first;
    if (offset >= size) break;
    float value = 0;
    std::memcpy(&value, rows + count * sizeof(float), sizeof(float));
    const std::uint64_t word = has[offset / 64];
    const std::uint32_t has_sum = -static_cast<std::uint32_t>(word >> (offset % 64) & 1);
    sums[offset] =
        std::bit_cast<float>((std::bit_cast<std::uint32_t>(sums[offset] + value) & has_sum) |
                             (std::bit_cast<std::uint32_t>(value) & ~has_sum));
    has[offset / 64] = word | std::uint64_t{1} << (offset % 64);
    touched[offset / 64] = 1;
  }
  return count;
}

// --------------------------------------------------------------------------------------- taking
/// Calls f(offset of its first key, bits) for each word of `has_` that is not zero, and clears it.
template <class Function>
void WindowSums::for_each_word(const Function& f) {
  for (std::size_t group = 0; group < touched_.size(); group += kGroup)
    for (std::uint64_t some = take_touched(group); some != 0; some &= some - 1) {
      const std::size_t word = group + static_cast<std::size_t>(std::countr_zero(some));
      f(64 * word, std::exchange(has_[word], 0));
    }
}

/// Returns a bit for each word of a group.
std::uint64_t WindowSums::take_touched(std::size_t group) {
  constexpr std::uint64_t kGather = 0x0102'0408'1020'4080;  // the last bits of 8 bytes into one
  std::uint64_t all = 0;
  for (std::size_t at = 0; at < kGroup; at += 8) {
    std::uint64_t flags = 0;
    std::memcpy(&flags, touched_.data() + group + at, sizeof flags);
    all |= (flags * kGather >> 56) << at;
  }
  if (all != 0) std::memset(touched_.data() + group, 0, kGroup);
  return all;
}

std::size_t WindowSums::take(double threshold, numeric::Rounding rounding, std::uint64_t* keys,
                             std::byte* rows, Rejected& rejected) {
  if (is_float_ && threshold == 0)
    return is_average_ ? take_floats<true>(keys, rows) : take_floats<false>(keys, rows);
  std::size_t count = 0;
  const std::size_t row_bytes = geometry_.row_bytes();
  std::byte* const stored = is_encoded_ ? rows_.data() : rows;
  for_each_word([&](std::size_t begin, std::uint64_t bits) {
    for (; bits != 0; bits &= bits - 1) {
      const std::size_t offset = begin + static_cast<std::size_t>(std::countr_zero(bits));
      std::byte* const row = stored + count * row_bytes;
      kernels_.store(row, sums_.get() + offset * sum_bytes_, row_, divisor_);
      if (threshold != 0 && is_rejected(row, threshold, rejected)) continue;
      keys[count++] = first_ + offset;
    }
  });
  const std::size_t elements = count * row_;
  if (!is_encoded_ || count == 0) return count;
  if (geometry_.type.is_scaled()) {
    const auto scale =
        numeric::encode(geometry_.type, encoded_.data(), rows_.data(), elements, rounding);
    numeric::decode(geometry_.type, rows, encoded_.data(), {elements, 0, elements}, scale);
  } else {
    numeric::decode(geometry_.type, rows, rows_.data(), {elements, 0, elements}, 0);
  }
  return count;
}

/// Takes several at once while there are bits. Entries that are taken when no bits are left are
/// overwritten, except the last one.
template <bool divides>
std::size_t WindowSums::take_floats(std::uint64_t* keys, std::byte* rows) {
  const auto* const sums = reinterpret_cast<const float*>(sums_.get());
  const auto divisor = static_cast<float>(divisor_);
  const std::uint64_t first = first_;
  std::size_t count = 0;
  const auto take_first = [&](std::size_t begin, std::uint64_t bits) {
    const std::size_t offset = begin + static_cast<std::size_t>(std::countr_zero(bits));
    float sum = sums[offset];
    if constexpr (divides) sum /= divisor;
    keys[count] = first + offset;
    std::memcpy(rows + count * sizeof(float), &sum, sizeof(float));
  };
  for_each_word([&](std::size_t begin, std::uint64_t bits) {
    if ((bits & (bits - 1)) == 0) {
      take_first(begin, bits);
      ++count;
      return;
    }
    do {
      for (int i = 0; i < 4; ++i) {
        take_first(begin, bits);
        count += bits != 0 ? 1 : 0;
        bits &= bits - 1;
      }
    } while (bits != 0);
  });
  return count;
}

bool WindowSums::is_rejected(const std::byte* row, double threshold, Rejected& rejected) {
  const ElementType element = geometry_.type.element();
  if (is_float(element) && element_bytes(element) == 2) {
    numeric::block_reduction(element, Reduction::kSum).load(widened_.data(), row, row_);
    row = widened_.data();
  }
  const double size = numeric::largest_magnitude(element, row, row_);
  if (!(size < threshold)) return false;
  ++rejected[rejected_class(size, threshold)];
  return true;
}

}  // namespace sluice::worker::host
