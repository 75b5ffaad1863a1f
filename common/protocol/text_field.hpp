// Short texts in packets, for people to read: a job's name, a build.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// A text that does not fit is cut; unused bytes are zero.
template <std::size_t N>
void set_text(std::array<std::uint8_t, N>& field, std::string_view text) {
  field.fill(0);
  std::copy_n(text.begin(), std::min(N, text.size()), field.begin());
}

/// The text up to the first zero. The sender may have sent anything, so every blank, and every
/// character that is not printable ASCII, becomes '?': the text cannot control a terminal or look
/// like two words.
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
