// What the user probably meant by a name that does not exist.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::config {

/// The candidate with the fewest insertions, deletions and substitutions from `name`, if that is
/// near enough to be meant: one edit, and one more per three characters.
std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates);

}  // namespace sluice::config
