// Counters stand in tables, of which everything is made that knows them by name: the members of a
// struct, its sums, logs, metrics, docs/metrics.md.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

template <class Struct>
struct CounterName {
  std::string_view name;
  std::uint64_t Struct::*member;
  std::string_view help;  ///< what it counts, for operators
};

}  // namespace sluice

/// A row of such a table, as a member.
#define SLUICE_COUNTER_MEMBER(name, help) std::uint64_t name = 0;
