// How often a test repeats what it draws.
#pragma once

namespace sluice::test {

/// Whether this is built with the address sanitizer.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kIsSanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool kIsSanitized = false;
#endif

/// A fifth with the address sanitizer: a round takes up to ten times as long there, and has to show
/// faults of memory only. Broken rules show in the other builds.
constexpr int rounds(int wanted) {
  return kIsSanitized ? wanted / 5 : wanted;
}

}  // namespace sluice::test
