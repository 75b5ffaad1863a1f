// Catch2: version 2, as Debian 12 has it, or 3, with the names that version 2 has for some things.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>

using Catch::Approx;

namespace Catch {
using Matchers::EndsWith;
using Matchers::Matches;
using Matchers::StartsWith;

inline auto Contains(const std::string& text) {
  return Matchers::ContainsSubstring(text);
}
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif
