#include "common/log/printable.hpp"

#include <cstddef>
#include <cstdint>

namespace sluice {
namespace {

/// The character at the beginning of a text, and its length in bytes; nothing if it is invalid.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

/// By RFC 3629: no longer than needed, no surrogates, nothing beyond U+10FFFF.
Character decode(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte_at(text, i) & 0x3fu);
  }
  const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (too_long || surrogate || code > 0x10ffff) return {};
  return {code, bytes};
}

bool is_shown(std::uint32_t code) {
  const bool controls = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool moves_others =
      (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return !controls && !moves_others;
}

void append_escaped(std::string& out, std::uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = decode(text);
    const std::size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes != 0 && is_shown(character.code))
      out += text.substr(0, bytes);
    else
      for (std::size_t i = 0; i < bytes; ++i) append_escaped(out, byte_at(text, i));
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace sluice
