// What callers in Python see: ValueError for what a call cannot take, RuntimeError for the rest.
// Every text begins with "sluice: ".
#pragma once

#include <stdexcept>
#include <string>

#include <sluice/error.hpp>

namespace sluice_torch {

[[noreturn]] inline void refuse(const std::string& call, const std::string& why) {
  throw std::invalid_argument("sluice: " + call + ": " + why);
}

inline std::runtime_error failure(const std::string& why) {
  return std::runtime_error("sluice: " + why);
}
inline std::runtime_error failure(const sluice::Error& error) {
  return failure(std::string(error.what()));
}

}  // namespace sluice_torch
