#include "aggregator/engine/key_window.hpp"

#include <cstring>

namespace sluice::aggregator {

template <class F>
void KeyWindow::for_each_word(std::uint32_t end, const F& f) const {
  const std::size_t words = (std::size_t{end} + 63) / 64;
  for (std::size_t group = 0; group < words; group += kGroup) {
    std::uint64_t touched;
    std::memcpy(&touched, touched_.get() + group, sizeof touched);
    for (; touched != 0; touched &= touched - 1)
      if (!f(group + static_cast<std::size_t>(std::countr_zero(touched)) / 8)) return;
  }
}

KeyWindow::Collected KeyWindow::collect(std::uint64_t base, std::uint32_t end, std::uint32_t first,
                                        std::span<std::uint64_t> out) {
  Collected found{.count = 0, .end = end};
  for_each_word(end, [&](std::size_t index) {
    Word& word = words_[index];
    word.before = first + static_cast<std::uint32_t>(found.count);
    const std::uint64_t from = base + index * 64;
    const auto count = static_cast<std::size_t>(std::popcount(word.keys));
    std::uint64_t bits = word.keys;
    if (count > out.size() - found.count) {
      for (; found.count < out.size(); bits &= bits - 1)
        out[found.count++] = from + static_cast<std::size_t>(std::countr_zero(bits));
      found.end = static_cast<std::uint32_t>(index * 64) +
                  static_cast<std::uint32_t>(std::countr_zero(bits));
      return false;
    }
    for (; bits != 0; bits &= bits - 1)
      out[found.count++] = from + static_cast<std::size_t>(std::countr_zero(bits));
    return true;
  });
  return found;
}

void KeyWindow::clear(std::uint32_t end) {
  for_each_word(end, [&](std::size_t index) {
    words_[index].keys = 0;
    return true;
  });
  std::memset(touched_.get(), 0, (std::size_t{end} + 63) / 64);
}

}  // namespace sluice::aggregator
