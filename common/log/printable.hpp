// Makes text from outside (names of sockets and files, texts of a peer) fit for the log.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// Returns `text` in UTF-8 without control characters. Each byte of a control character, of a
/// character that changes the order of others (U+2028 to U+202E, U+2066 to U+2069), or of invalid
/// UTF-8 becomes "\xHH"; line feed, carriage return and tab become "\n", "\r" and "\t". Other
/// characters stay as they are.
std::string printable(std::string_view text);

}  // namespace sluice
