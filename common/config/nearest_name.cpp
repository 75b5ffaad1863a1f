#include "common/config/nearest_name.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice::config {

// Wagner and Fischer's recurrence, a row at a time, with Damerau's exchange of two neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = above[j] + (a[i] == b[j] ? 0 : 1);
      row[j + 1] = std::min({substituted, row[j] + 1, above[j + 1] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates) {
  std::optional<std::string> nearest;
  std::size_t allowed = 1 + name.size() / 3;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance > allowed || (nearest && distance == allowed)) continue;
    nearest = candidate;
    allowed = distance;
  }
  return nearest;
}

}  // namespace sluice::config
