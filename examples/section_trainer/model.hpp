// A linear softmax model: the score of a section is the mean weight of the record's features in
// that section's column, scaled so that long and short descriptions move the model alike.
#pragma once

#include <cstddef>

#include "examples/section_trainer/records.hpp"
#include "examples/section_trainer/table.hpp"

namespace section_trainer {

/// A gradient being collected: non-zero only in `rows` of `table`.
struct Gradient {
  Table table;
  RowSet rows;
};

/// Adds `scale` times the gradient of the record's cross entropy; returns that cross entropy.
double add_gradient(const Record& record, const Table& weights, std::size_t sections, float scale,
                    Gradient& gradient);

/// The section of highest score.
std::size_t predict(const Record& record, const Table& weights, std::size_t sections);

/// weights -= rate * gradient; leaves the gradient all zero. Looks at every row, since the sum over
/// ranks is non-zero wherever any of them was.
void apply_and_clear(Gradient& gradient, float rate, Table& weights);

}  // namespace section_trainer
