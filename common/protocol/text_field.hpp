// Short texts in packets, for people to read: a job's name, a build.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// What does not fit is cut off; the rest is zero.
template <std::size_t N>
void set_text(std::array<std::uint8_t, N>& field, std::string_view text) {
  field.fill(0);
  std::copy_n(text.begin(), std::min(N, text.size()), field.begin());
}

/// Up to the first zero. Whoever sent it may have sent anything: what is no printable ASCII
/// character, or a blank, becomes '?', so that it neither moves a terminal nor looks like two
/// words.
template <std::size_t N>
std::string text_of(const std::array<std::uint8_t, N>& field) {
  std::string text;
  for (const std::uint8_t byte : field) {
    if (byte == 0) break;
    text += byte > 0x20 && byte < 0x7f ? static_cast<char>(byte) : '?';
  }
  return text;
}

}  // namespace sluice
