// The tables of docs/protocol.md, for the tests that compare it with the code.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/catch.hpp"

namespace sluice::test {

/// A file of this checkout: tests run in the build directory, or with SOURCE_ROOT set.
inline std::filesystem::path source_file(const std::string& path) {
  const char* root = std::getenv("SOURCE_ROOT");
  return (root != nullptr
              ? std::filesystem::path(root)
              : std::filesystem::path(__FILE__).parent_path().parent_path().parent_path()) /
         path;
}

inline std::string protocol_page() {
  const auto path = source_file("docs/protocol.md");
  std::ifstream in(path);
  INFO("cannot read " << path << ": run in the build directory, or set SOURCE_ROOT");
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct DocumentedField {
  std::string type;
  std::string name;
  std::size_t offset;
  std::size_t size;
  std::string range;  // empty: that of the type that it is

  std::string full_name() const { return type + "." + name; }
};

/// One for each row `| offset | size | `name` | meaning | range |` under a heading "#### `Type`".
inline std::vector<DocumentedField> documented_fields() {
  static const std::regex heading("#+ .*`(\\w+)`");
  static const std::regex row("\\| (\\d+) \\| (\\d+) \\| `(\\w+)` \\|.*\\|\\s*([^|]*?)\\s*\\|");
  std::vector<DocumentedField> fields;
  std::istringstream page(protocol_page());
  std::string type;
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (line.starts_with('#')) type = std::regex_match(line, match, heading) ? match.str(1) : "";
    if (!type.empty() && std::regex_match(line, match, row))
      fields.push_back(
          {type, match.str(3), std::stoul(match.str(1)), std::stoul(match.str(2)), match.str(4)});
  }
  return fields;
}

}  // namespace sluice::test
