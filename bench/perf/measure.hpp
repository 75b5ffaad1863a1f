// One cell of the table: warm up, time, check, and gather from all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/sluice.hpp>

#include "bench/perf/options.hpp"
#include "bench/perf/report.hpp"
#include "bench/perf/tensors.hpp"

namespace sluice::perf {

/// Memory for the largest tensor, twice where results go out of place.
class Buffers {
 public:
  explicit Buffers(const Options& options);  ///< throws kUnavailable

  /// Where an op reads and where it writes; the same memory in place.
  std::span<std::byte> input(std::size_t bytes) { return {input_.get(), bytes}; }
  std::span<std::byte> output(std::size_t bytes, bool in_place) {
    return {in_place ? input_.get() : output_.get(), bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { deallocate(memory); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  Memory input_;
  Memory output_;
};

struct Case {
  std::uint64_t bytes = 0;  ///< rounded down to whole elements
  ElementType type = ElementType::kFloat32;
  Reduction reduction = Reduction::kSum;
  double density = 1.0;
  bool in_place = false;
  std::uint64_t seed = 0;
};

/// Runs on every rank alike and returns the same row on all. Throws the library's Error.
Row measure(Communicator& job, const Options& options, const Case& the_case, Buffers& buffers);

}  // namespace sluice::perf
