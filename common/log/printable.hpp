// Text from outside (names of sockets and files, a peer's words) as the log may show it.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// `text` in UTF-8 without control characters: each byte of one, of a character that moves others
/// about (U+2028 to U+202E, U+2066 to U+2069), or of broken UTF-8 becomes "\xHH"; a line feed, a
/// carriage return and a tab become "\n", "\r" and "\t". All else stays as it is.
std::string printable(std::string_view text);

}  // namespace sluice
