// What the user probably meant by a name that does not exist.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::config {

/// The fewest insertions, deletions, substitutions and exchanges of neighbours that make `b` of
/// `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that is the fewest edits away from `name`, if that is
/// near enough to be meant: one edit, and one more per three characters.
std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates);

}  // namespace sluice::config
