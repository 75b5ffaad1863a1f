#include "examples/section_trainer/records.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "examples/section_trainer/hash.hpp"
#include "examples/section_trainer/table.hpp"

namespace section_trainer {
namespace {

struct Package {
  std::string name, section, description;
};

std::optional<std::string_view> field(std::string_view line, std::string_view name) {
  if (line.substr(0, name.size()) != name) return std::nullopt;
  return line.substr(name.size());
}

/// Next paragraph of the input; none at its end.
std::optional<Package> next_package(std::istream& input) {
  Package package;
  bool any = false;
  for (std::string line; std::getline(input, line) && !line.empty(); any = true) {
    if (const auto name = field(line, "Package: ")) package.name = *name;
    if (const auto section = field(line, "Section: "))
      package.section = section->substr(section->rfind('/') + 1);  // "contrib/web" is web
    if (const auto description = field(line, "Description: ")) package.description = *description;
  }
  return any ? std::optional(package) : std::nullopt;
}

std::vector<Package> read_packages(std::istream& input) {
  std::vector<Package> packages;
  std::set<std::string> seen;  // a package comes once per version and archive
  while (auto package = next_package(input))
    if (!package->section.empty() && !package->description.empty() &&
        seen.insert(package->name).second)
      packages.push_back(std::move(*package));
  return packages;
}

std::vector<std::string> most_frequent_sections(const std::vector<Package>& packages) {
  std::map<std::string, std::size_t> count;
  for (const Package& package : packages) ++count[package.section];
  std::vector<std::string> sections;
  for (const auto& [section, n] : count) sections.push_back(section);
  std::stable_sort(sections.begin(), sections.end(),
                   [&](const auto& a, const auto& b) { return count[a] > count[b]; });
  if (sections.size() > kColumns) sections.resize(kColumns);
  return sections;
}

}  // namespace

Dataset read_records(std::istream& input) {
  const std::vector<Package> packages = read_packages(input);
  Dataset data{most_frequent_sections(packages), {}, {}};
  for (const Package& package : packages) {
    const auto section = std::find(data.sections.begin(), data.sections.end(), package.section);
    if (section == data.sections.end()) continue;
    // Equal descriptions fall on the same side of the split, so none is known from training.
    auto& side = hash(package.description) % 10 == 0 ? data.held_out : data.train;
    side.push_back(
        {features_of(package.description), std::uint8_t(section - data.sections.begin())});
  }
  return data;
}

}  // namespace section_trainer
