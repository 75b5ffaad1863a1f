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

  KeyWindow()
      : words_(std::make_unique<Word[]>(kWords)),
        touched_(new std::uint8_t[kWords]()),
        indexes_(std::make_unique<std::uint16_t[]>(kWords + kSpare)) {}

  /// Adds keys, which count from the begin of the window. As neighbours are mostly in one word,
  /// each would wait for the one before it: so they are taken from four places in turns.
  void insert(std::span<const std::uint32_t> keys) {
    inserted_ += keys.size();
    const std::size_t each = keys.size() / 4;
    for (std::size_t i = 0; i < each; ++i)
      for (std::size_t part = 0; part < 4; ++part) insert(keys[part * each + i]);
    for (std::size_t i = 4 * each; i < keys.size(); ++i) insert(keys[i]);
  }

  /// Writes the keys of the union, each with `base` added, in ascending order, as many as there is
  /// room for in `out`, and any numbers behind them. From now on place_of() counts from `first`.
  /// `end`: no key is as large. Returns how many there are, and the first one that was not written,
  /// or `end`.
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

  /// Removes all keys, which have been collected and are less than `end`.
  void clear(std::uint32_t end);

 private:
  struct Word {
    std::uint64_t keys = 0;    // a bit each
    std::uint32_t before = 0;  // the place of the first one
  };
  static constexpr std::size_t kWords = kKeys / 64;
  static constexpr std::size_t kSpare = 4;  // numbers are written four at a time

  void insert(std::uint32_t key) {
    words_[key / 64].keys |= std::uint64_t{1} << key % 64;
    touched_[key / 64] = 1;
  }
  std::size_t find_touched(std::uint32_t end);
  template <int kAtOnce>
  Collected collect_some(std::uint64_t base, std::uint32_t end, std::uint32_t first,
                         std::span<std::uint64_t> out);

  std::unique_ptr<Word[]> words_;
  std::unique_ptr<std::uint8_t[]> touched_;   // by word: 1 if it has keys
  std::unique_ptr<std::uint16_t[]> indexes_;  // of the words that have
  std::size_t words_with_keys_ = 0;
  std::size_t inserted_ = 0;  // keys, of which some may be equal
};

}  // namespace sluice::aggregator
