// What is trained in which order: the same on every rank and in the single-process runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "examples/section_trainer/records.hpp"

namespace section_trainer {

struct Plan {
  std::size_t epochs = 12;
  std::size_t batch = 512;       ///< records per step, over all ranks
  float learning_rate = 200.0f;  ///< in the first epoch; falls linearly to a tenth in the last
  std::uint64_t seed = 1;

  /// The training records' indices in the order of this epoch.
  std::vector<std::uint32_t> shuffled(std::size_t record_count, std::size_t epoch) const;
  float rate(std::size_t epoch) const;
  std::size_t steps(std::size_t record_count) const { return (record_count + batch - 1) / batch; }
};

/// Global batch `step` of an epoch's order; the last one may be short.
std::span<const std::uint32_t> batch_of(std::span<const std::uint32_t> order, std::size_t step,
                                        std::size_t batch);

/// The part that `rank` of `ranks` takes; the parts in rank order are the whole.
template <class T>
std::span<const T> share_of(std::span<const T> whole, std::size_t rank, std::size_t ranks) {
  const std::size_t begin = whole.size() * rank / ranks;
  return whole.subspan(begin, whole.size() * (rank + 1) / ranks - begin);
}

}  // namespace section_trainer
