// The fuzzer's input as a stream of choices. A stream that has run dry gives zeros, so that every
// input is valid and what a target does depends on nothing else.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }

  template <std::unsigned_integral T>
  T number() {
    T value = 0;
    for (const std::uint8_t byte : take(sizeof(T)))
      value = static_cast<T>((value << 4 << 4) | byte);
    return value;
  }
  std::uint8_t byte() { return number<std::uint8_t>(); }

  /// 0 .. bound - 1; 0 if bound is.
  std::size_t below(std::size_t bound) {
    if (bound <= 1) return 0;
    return (bound <= 256 ? number<std::uint8_t>() : number<std::uint32_t>()) % bound;
  }
  bool one_in(std::size_t n) { return below(n) == n - 1; }  ///< false once the stream is dry

  template <class T, std::size_t n>
  T pick(const std::array<T, n>& choices) {
    return choices[below(n)];
  }

  std::span<const std::uint8_t> take(std::size_t size) {
    const auto taken = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const std::uint8_t> rest() { return take(left_.size()); }

 private:
  std::span<const std::uint8_t> left_;
};

/// Numbers that were seen, to be said again: what a forger has learnt.
class Known {
 public:
  void learn(std::uint64_t value) {
    if (values_.size() < kMost)
      values_.push_back(value);
    else
      values_[next_++ % kMost] = value;
  }
  bool has(std::uint64_t value) const {
    return std::find(values_.begin(), values_.end(), value) != values_.end();
  }

  /// Mostly one that is known, sometimes its neighbour, at times any.
  std::uint64_t choose(Input& input) const {
    const std::uint8_t choice = input.byte();
    if (values_.empty() || choice >= 0xf0) return input.number<std::uint64_t>();
    const std::uint64_t value = values_[choice % values_.size()];
    return choice >= 0xe0 ? value + 1 : value;
  }

 private:
  static constexpr std::size_t kMost = 64;
  std::vector<std::uint64_t> values_;
  std::size_t next_ = 0;
};

}  // namespace sluice::fuzz
