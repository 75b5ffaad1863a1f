#include "examples/section_trainer/plan.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace section_trainer {

std::vector<std::uint32_t> Plan::shuffled(std::size_t record_count, std::size_t epoch) const {
  std::vector<std::uint32_t> order(record_count);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1'000'003 + epoch);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

float Plan::rate(std::size_t epoch) const {
  if (epochs < 2) return learning_rate;
  return learning_rate * (1.0f - 0.9f * float(epoch) / float(epochs - 1));
}

std::span<const std::uint32_t> batch_of(std::span<const std::uint32_t> order, std::size_t step,
                                        std::size_t batch) {
  return order.subspan(step * batch, std::min(batch, order.size() - step * batch));
}

}  // namespace section_trainer
