#include "examples/section_trainer/train_alone.hpp"

#include <algorithm>
#include <cmath>

namespace section_trainer {
namespace {

void add_and_clear(Gradient& part, Gradient& sum) {
  part.rows.for_each([&](std::size_t r) {
    for (std::size_t c = 0; c < kColumns; ++c) sum.table[r].at[c] += part.table[r].at[c];
    part.table[r] = Row{};
  });
  part.rows.clear();
}

}  // namespace

Table train_alone(const Dataset& data, const Plan& plan, std::size_t parts) {
  Table weights;
  Gradient part, sum;
  for (std::size_t epoch = 0; epoch < plan.epochs; ++epoch) {
    const auto order = plan.shuffled(data.train.size(), epoch);
    for (std::size_t step = 0; step < plan.steps(order.size()); ++step) {
      const auto batch = batch_of(order, step, plan.batch);
      for (std::size_t p = 0; p < parts; ++p) {
        for (const std::uint32_t i : share_of(batch, p, parts))
          add_gradient(data.train[i], weights, data.sections.size(), 1.0f / float(batch.size()),
                       part);
        add_and_clear(part, sum);
      }
      apply_and_clear(sum, plan.rate(epoch), weights);
    }
  }
  return weights;
}

double largest_difference(const Table& a, const Table& b) {
  double largest = 0;
  for (std::size_t i = 0; i < kParameters; ++i) {
    const double difference = std::abs(double(a.tensor()[i]) - double(b.tensor()[i]));
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(difference)) return difference;
  }
  return largest;
}

double largest_weight(const Table& weights) {
  double largest = 0;
  for (const float weight : weights.tensor()) largest = std::max(largest, double(std::abs(weight)));
  return largest;
}

}  // namespace section_trainer
