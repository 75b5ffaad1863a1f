#pragma once

#include <stdexcept>

namespace sluice::bench {

/// A wrong flag or value: what() names flag, value and what is allowed, in one line.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace sluice::bench
