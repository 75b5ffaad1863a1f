// What callers in Python see: ValueError for what a call cannot take, RuntimeError for the rest.
// Every text begins with "sluice: ".
#pragma once

#include <exception>
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

/// What the library said to `call`; empty: no call in particular.
inline std::exception_ptr translated(const sluice::Error& error, const std::string& call = "") {
  const std::string text = "sluice: " + (call.empty() ? "" : call + ": ") + error.what();
  return error.code() == sluice::ErrorCode::kInvalidArgument
             ? std::make_exception_ptr(std::invalid_argument(text))
             : std::make_exception_ptr(std::runtime_error(text));
}

}  // namespace sluice_torch
