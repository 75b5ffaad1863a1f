// One cell of the table: warm up, time, check, and gather the figures of all ranks.
#pragma once

#include <cstdint>

#include <sluice/sluice.hpp>

#include "bench/perf/buffers.hpp"
#include "bench/perf/perf_options.hpp"
#include "bench/perf/perf_report.hpp"

namespace sluice::perf {

struct Case {
  std::uint64_t bytes = 0;  ///< rounded down to whole elements
  ElementType type = ElementType::kFloat32;
  Reduction reduction = Reduction::kSum;
  double density = 1.0;
  bool in_place = false;
  std::uint64_t seed = 0;
};

/// All ranks call it with the same arguments, and it returns the same row on all. Throws the
/// library's Error.
Row measure(Communicator& job, const Options& options, const Case& the_case, Buffers& buffers);

}  // namespace sluice::perf
