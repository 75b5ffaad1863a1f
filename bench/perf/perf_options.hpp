// The command line of sluice-perf: nccl-tests' flags, and Sluice's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/types.hpp>

#include "bench/flags.hpp"
#include "bench/perf/pattern.hpp"
#include "bench/usage_error.hpp"

namespace sluice::perf {

using bench::UsageError;

/// Where tensors lie.
enum class MemoryKind {
  kShared,    ///< sluice::allocate: other processes of this machine may read them there
  kOrdinary,  ///< as in any program
};

/// "shared", "ordinary".
std::string_view name(MemoryKind kind);

struct Options {
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = 0;
  std::uint64_t step_factor = 0;  ///< 1: advance by step_bytes instead
  std::uint64_t step_bytes = 0;

  std::uint32_t iterations = 0;
  std::uint32_t warmup_iterations = 0;
  bool check = true;
  bool refill = true;  ///< before every run, with values of its own; otherwise only once

  std::chrono::microseconds pause{0};  ///< before each iteration

  std::vector<ElementType> types;
  std::vector<Reduction> reductions;
  Encoding encoding = Encoding::kNone;  ///< for sums and averages of float
  std::uint64_t rounding_seed = 0;      ///< for int8 and int4; 0: to nearest
  std::vector<double> densities;
  Overlap overlap = Overlap::kRandom;
  MemoryKind memory = MemoryKind::kShared;
  std::vector<bool> in_place;  ///< the variants of each row, out of place first

  std::optional<std::uint16_t> block_elements;  ///< unset: from the environment
  std::optional<std::uint16_t> streams;
  bool bitmap = false;
  std::uint64_t seed = 0;
  std::string json_path;  ///< empty: none

  bool help = false;     ///< print help() and do nothing else; the other members are not set
  bool version = false;  ///< the same with the version

  /// min_bytes .. max_bytes by the steps.
  std::vector<std::uint64_t> sizes() const;
};

/// `arguments` without the program's name. Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments);

/// What --help prints.
bench::Help help();

}  // namespace sluice::perf
