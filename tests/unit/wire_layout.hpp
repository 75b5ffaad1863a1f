// The fields of the wire format: where docs/protocol.md has them, and where the compiler does.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::test {

struct FieldRow {
  std::string type;
  std::string field;
  std::size_t offset;  // as documented
  std::size_t size;
  std::size_t real_offset;  // as compiled
  std::size_t real_size;
  std::size_t total;  // of the struct
};

/// Of every field that the page has. reference/protocol.py writes it: what the page has and
/// wire.hpp lacks does not compile.
std::vector<FieldRow> layout();

}  // namespace sluice::test
