// A set of ranks of one job. It is small enough to copy, and finds its lowest member fast.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "common/base/ids.hpp"

namespace sluice {

class RankSet {
 public:
  using Bytes =
      std::array<std::uint8_t, kMaxRanks / 8>;  ///< bit r % 8 of byte r / 8, as on the wire

  /// {0 .. count-1}; count 0..kMaxRanks.
  static RankSet first(std::uint16_t count) {
    RankSet set;
    for (std::size_t i = 0; i < count / 64u; ++i) set.words_[i] = ~std::uint64_t{0};
    if (count % 64 != 0) set.words_[count / 64] = (std::uint64_t{1} << (count % 64)) - 1;
    return set;
  }
  static RankSet from_bytes(const Bytes& bytes) {
    RankSet set;
    for (std::size_t r = 0; r < kMaxRanks; ++r)
      if (((bytes[r / 8] >> (r % 8)) & 1) != 0) set.insert(Rank{static_cast<std::uint16_t>(r)});
    return set;
  }
  Bytes to_bytes() const {
    Bytes bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(words_[i / 8] >> (8 * (i % 8)));
    return bytes;
  }

  void insert(Rank r) { words_[r.value / 64] |= bit(r); }
  void erase(Rank r) { words_[r.value / 64] &= ~bit(r); }
  bool contains(Rank r) const { return (words_[r.value / 64] & bit(r)) != 0; }
  void clear() { words_ = {}; }
  RankSet& operator|=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  RankSet& operator&=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
    return *this;
  }
  RankSet& operator-=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
    return *this;
  }

  bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  std::uint16_t size() const {
    int n = 0;
    for (const auto word : words_) n += std::popcount(word);
    return static_cast<std::uint16_t>(n);
  }

  /// The lowest member; kMaxRanks if it is empty.
  std::uint16_t lowest() const {
    for (std::size_t i = 0; i < words_.size(); ++i)
      if (words_[i] != 0) return static_cast<std::uint16_t>(64 * i + std::countr_zero(words_[i]));
    return kMaxRanks;
  }

  /// Calls f(Rank) for each member, lowest first.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < words_.size(); ++i)
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
        f(Rank{static_cast<std::uint16_t>(64 * i + std::countr_zero(word))});
  }

  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  static constexpr std::uint64_t bit(Rank r) { return std::uint64_t{1} << (r.value % 64); }
  std::array<std::uint64_t, kMaxRanks / 64> words_{};
};

/// "1, 2, 5": the first eight members, with numbers from `number`, and how many more there are.
template <class Number>
std::string text_of(const RankSet& ranks, Number&& number) {
  constexpr int kNamed = 8;
  std::string text;
  int named = 0;
  ranks.for_each([&](Rank rank) {
    if (named++ >= kNamed) return;
    if (!text.empty()) text += ", ";
    text += std::to_string(number(rank).value);
  });
  if (named > kNamed) text += " and " + std::to_string(named - kNamed) + " more";
  return text;
}
inline std::string text_of(const RankSet& ranks) {
  return text_of(ranks, [](Rank rank) { return rank; });
}

}  // namespace sluice
