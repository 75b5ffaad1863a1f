#include "aggregator/engine/key_window.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::aggregator {
namespace {

/// Writes the numbers of the bits that are set, each with `base` added, some at a time: how many
/// there are is hard to foresee. Any numbers may follow. Returns how many there are.
template <int kAtOnce, class T>
inline std::size_t write_bits(std::uint64_t bits, T base, T* out) {
  constexpr std::uint64_t kHighest = std::uint64_t{1} << 63;  // so that there is one: no branch
  const auto count = static_cast<std::size_t>(std::popcount(bits));
  const auto take = [&] {
    const auto number = static_cast<T>(base + static_cast<T>(std::countr_zero(bits | kHighest)));
    bits &= bits - 1;
    return number;
  };
  do {
#pragma GCC unroll 4
    for (int i = 0; i < kAtOnce; ++i) out[i] = take();
    out += kAtOnce;
  } while (bits != 0);
  return count;
}

}  // namespace

/// Of the words with keys that are less than `end`.
std::size_t KeyWindow::find_touched(std::uint32_t end) {
  const std::size_t words = (std::size_t{end} + 63) / 64;
  std::size_t count = 0;
  for (std::size_t first = 0; first < words; first += 64) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 64; i += 8) {
      std::uint64_t bytes;
      std::memcpy(&bytes, touched_.get() + first + i, sizeof bytes);
      bits |= (bytes * 0x0102'0408'1020'4080 >> 56) << i;
    }
    count += write_bits<4>(bits, static_cast<std::uint16_t>(first), indexes_.get() + count);
  }
  return count;
}

KeyWindow::Collected KeyWindow::collect(std::uint64_t base, std::uint32_t end, std::uint32_t first,
                                        std::span<std::uint64_t> out) {
  words_with_keys_ = find_touched(end);
  const bool are_few = inserted_ < words_with_keys_ + words_with_keys_ / 4;
  return are_few ? collect_some<1>(base, end, first, out) : collect_some<4>(base, end, first, out);
}

/// kAtOnce: so many keys are mostly in one word.
template <int kAtOnce>
KeyWindow::Collected KeyWindow::collect_some(std::uint64_t base, std::uint32_t end,
                                             std::uint32_t first, std::span<std::uint64_t> out) {
  Collected found{.count = 0, .end = end};
  for (std::size_t i = 0; i < words_with_keys_; ++i) {
    Word& word = words_[indexes_[i]];
    word.before = first + static_cast<std::uint32_t>(found.count);
    const std::uint64_t from = base + indexes_[i] * std::uint64_t{64};
    if (out.size() - found.count >= 64) {
      found.count += write_bits<kAtOnce>(word.keys, from, out.data() + found.count);
      continue;
    }
    std::array<std::uint64_t, 64> keys;
    const std::size_t count = write_bits<kAtOnce>(word.keys, from, keys.data());
    const std::size_t fit = std::min(count, out.size() - found.count);
    std::copy_n(keys.begin(), fit, out.begin() + static_cast<std::ptrdiff_t>(found.count));
    found.count += fit;
    if (fit == count) continue;
    found.end = static_cast<std::uint32_t>(keys[fit] - base);
    break;
  }
  return found;
}

void KeyWindow::clear(std::uint32_t end) {
  inserted_ = 0;
  for (std::size_t i = 0; i < words_with_keys_; ++i) words_[indexes_[i]].keys = 0;
  std::memset(touched_.get(), 0, (std::size_t{end} + 63) / 64);
}

}  // namespace sluice::aggregator
