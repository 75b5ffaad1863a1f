// The union of several ranks' keys in a window of neighbouring keys. It finds each key's place in
// the union without comparing keys of different ranks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice::aggregator {

class KeyWindow {
 public:
  static constexpr std::size_t kKeys = std::size_t{1} << 18;

  KeyWindow() : words_(std::make_unique<Word[]>(kWords)), touched_(new std::uint8_t[kWords]()) {}

  /// Adds keys, which count from the begin of the window.
  void insert(std::span<const std::uint32_t> keys) {
    for (const std::uint32_t key : keys) {
      words_[key / 64].keys |= std::uint64_t{1} << key % 64;
      touched_[key / 64] = 1;
    }
  }

  /// Writes the keys of the union, each with `base` added, in ascending order, as many as there is
  /// room for in `out`. From now on place_of() counts from `first`. `end`: no key is as large.
  /// Returns how many there are, and the first one that was not written, or `end`.
  struct Collected {
    std::size_t count;
    std::uint32_t end;
  };
  Collected collect(std::uint64_t base, std::uint32_t end, std::uint32_t first,
                    std::span<std::uint64_t> out);

  /// The place of a key that was written in the union.
  std::uint32_t place_of(std::uint32_t key) const {
    const Word& word = words_[key / 64];
    const std::uint64_t below = word.keys & ((std::uint64_t{1} << key % 64) - 1);
    return word.before + static_cast<std::uint32_t>(std::popcount(below));
  }

  /// Removes all keys, which are less than `end`.
  void clear(std::uint32_t end);

 private:
  struct Word {
    std::uint64_t keys = 0;    // a bit each
    std::uint32_t before = 0;  // the place of the first one
  };
  static constexpr std::size_t kWords = kKeys / 64;
  static constexpr std::size_t kGroup = 8;  // of words that are looked at together

  /// Calls f(index) for each word that has keys; until it returns false.
  template <class F>
  void for_each_word(std::uint32_t end, const F& f) const;

  std::unique_ptr<Word[]> words_;
  std::unique_ptr<std::uint8_t[]> touched_;
};

}  // namespace sluice::aggregator
