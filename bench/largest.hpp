// Exchange of numbers between the ranks of a benchmark.
#pragma once

#include <span>
#include <vector>

#include <sluice/sluice.hpp>

namespace sluice::bench {

/// The largest of the ranks' numbers.
inline std::vector<double> largest(Communicator& job, std::vector<double> numbers) {
  ReduceOptions options;
  options.reduction = Reduction::kMax;
  job.all_reduce(std::span(numbers), options).wait();
  return numbers;
}

}  // namespace sluice::bench
