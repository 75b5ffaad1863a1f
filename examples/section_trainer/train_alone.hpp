// The same training in one process and without Sluice: what the ranks' result must match.
#pragma once

#include "examples/section_trainer/model.hpp"
#include "examples/section_trainer/plan.hpp"

namespace section_trainer {

/// Weights after the same global batches. Every batch's gradient is collected in `parts` parts that
/// are added up in order: as many parts as ranks repeats the very additions of the ranks, one part
/// is what a program that knows nothing of ranks does.
Table train_alone(const Dataset& data, const Plan& plan, std::size_t parts);

/// Largest |a - b| over all weights; NaN when any weight is.
double largest_difference(const Table& a, const Table& b);
double largest_weight(const Table& weights);

}  // namespace section_trainer
