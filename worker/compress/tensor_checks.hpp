// Checks of the tensors that calls are given.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <sluice/error.hpp>

namespace sluice {

[[noreturn]] inline void refuse(const std::string& call, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, call + ": " + why);
}

inline std::string quantity(const char* name, std::uint64_t is, std::uint64_t expected) {
  return std::string(name) + " has " + std::to_string(is) + " elements, " +
         std::to_string(expected) + " expected";
}

inline bool overlap(std::span<const float> a, std::span<const float> b) {
  const auto begin = [](std::span<const float> s) {
    return reinterpret_cast<std::uintptr_t>(s.data());
  };
  if (a.empty() || b.empty()) return false;
  return begin(a) < begin(b) + b.size_bytes() && begin(b) < begin(a) + a.size_bytes();
}

}  // namespace sluice
