// The only source of chance in a simulation: its seed determines everything.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace sluice::sim {

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and good enough for a search.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e37'79b9'7f4a'7c15u);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }  ///< [0, 1)
  double uniform(double low, double high) { return low + (high - low) * unit(); }
  bool chance(double p) { return p > 0 && unit() < p; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }

 private:
  std::uint64_t state_;
};

/// A seed for part `part` of what `seed` describes.
inline std::uint64_t derive(std::uint64_t seed, std::uint64_t part) {
  Random mix(seed ^ (part * 0xd134'2543'de82'ef95u + 1));
  return mix.next();
}

}  // namespace sluice::sim
