#include "examples/section_trainer/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace section_trainer {
namespace {

float feature_value(const Record& record) {
  return 1.0f / std::sqrt(float(record.features.size()));
}

Row scores(const Record& record, const Table& weights) {
  Row sum;
  for (const std::uint32_t feature : record.features)
    for (std::size_t c = 0; c < kColumns; ++c) sum.at[c] += weights[feature].at[c];
  const float value = feature_value(record);
  for (float& score : sum.at) score *= value;
  return sum;
}

/// Scores to probabilities of the first `sections` columns; the others become zero.
void softmax(Row& row, std::size_t sections) {
  const float top = *std::max_element(row.at.begin(), row.at.begin() + long(sections));
  float total = 0;
  for (std::size_t c = 0; c < sections; ++c) total += row.at[c] = std::exp(row.at[c] - top);
  for (std::size_t c = 0; c < kColumns; ++c) row.at[c] = c < sections ? row.at[c] / total : 0.0f;
}

bool is_zero(const Row& row) {
  std::array<std::uint32_t, kColumns> bits;
  std::memcpy(bits.data(), row.at.data(), sizeof bits);
  std::uint32_t any = 0;
  for (const std::uint32_t word : bits) any |= word;
  return any == 0;
}

}  // namespace

double add_gradient(const Record& record, const Table& weights, std::size_t sections, float scale,
                    Gradient& gradient) {
  Row error = scores(record, weights);
  softmax(error, sections);
  const double loss = -std::log(std::max(double(error.at[record.section]), 1e-30));
  error.at[record.section] -= 1.0f;
  const float step = scale * feature_value(record);
  for (float& e : error.at) e *= step;
  for (const std::uint32_t feature : record.features) {
    Row& row = gradient.table[feature];
    for (std::size_t c = 0; c < kColumns; ++c) row.at[c] += error.at[c];
    gradient.rows.insert(feature);
  }
  return loss;
}

std::size_t predict(const Record& record, const Table& weights, std::size_t sections) {
  const Row row = scores(record, weights);
  return std::size_t(std::max_element(row.at.begin(), row.at.begin() + long(sections)) -
                     row.at.begin());
}

void apply_and_clear(Gradient& gradient, float rate, Table& weights) {
  for (std::size_t r = 0; r < kBuckets; ++r) {
    Row& row = gradient.table[r];
    if (is_zero(row)) continue;
    for (std::size_t c = 0; c < kColumns; ++c) weights[r].at[c] -= rate * row.at[c];
    row = Row{};
  }
  gradient.rows.clear();
}

}  // namespace section_trainer
