// Labelled examples out of Debian's package records: what a package's description says (as hashed
// words and pairs of words) and the section it is in.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace section_trainer {

struct Record {
  std::vector<std::uint32_t> features;  ///< rows of the table, sorted, each once
  std::uint8_t section = 0;             ///< index into Dataset::sections
};

struct Dataset {
  std::vector<std::string> sections;  ///< most frequent first, at most kColumns
  std::vector<Record> train;
  std::vector<Record> held_out;  ///< about a tenth, chosen by a hash of the description
};

/// Rows for the description's words, for its pairs of neighbouring words, and one for all records.
std::vector<std::uint32_t> features_of(std::string_view description);

/// Reads "Field: value" paragraphs as `apt-cache dumpavail` prints them. Packages without section
/// or description, and repeated ones, are left out. Same input, same dataset: ranks rely on that.
Dataset read_records(std::istream& input);

}  // namespace section_trainer
