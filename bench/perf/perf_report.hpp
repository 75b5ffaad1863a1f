// The forms of a measurement: a row of the table, a line of the footer, an object in the JSON file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <sluice/types.hpp>

#include "bench/perf/pattern.hpp"
#include "bench/perf/perf_options.hpp"

namespace sluice::perf {

/// Times of the timed iterations, in microseconds.
struct Times {
  double median = 0;
  double min = 0;
  double p99 = 0;
};

/// There is at least one; p99 is the smallest that is not less than 99% of them.
Times summarise(std::span<const std::int64_t> nanoseconds);

/// One size, type, reduction and density, in one variant.
struct Row {
  std::uint64_t size_bytes = 0;
  std::uint64_t count = 0;  ///< elements
  ElementType type = ElementType::kFloat32;
  Reduction redop = Reduction::kSum;
  Encoding encoding = Encoding::kNone;
  std::uint16_t ranks = 1;
  std::uint32_t block_elements = 0;
  double density = 0;        ///< as requested
  double union_density = 0;  ///< as measured by the library
  Overlap overlap = Overlap::kRandom;
  bool in_place = false;
  MemoryKind memory = MemoryKind::kShared;
  std::uint32_t iterations = 0;
  Times time_us;
  std::optional<std::uint64_t> wrong;  ///< elements, over all ranks; unset: not checked
  std::uint64_t wire_bytes = 0;        ///< sent and received by all ranks in an iteration, mean
  std::uint64_t retransmits = 0;       ///< of all ranks in all timed iterations

  double algbw_gbps() const;  ///< size / median time, 10^9 bytes/s
  double busbw_gbps() const;  ///< algbw * 2(ranks-1)/ranks
};

std::string table_header(const Options& options, std::uint16_t ranks);

/// Formats the variants of one row as one line.
std::string table_line(std::span<const Row> variants);

/// nccl-tests' two lines.
std::string table_footer(std::span<const Row> rows);

/// Elements that were wrong in all rows.
std::uint64_t total_wrong(std::span<const Row> rows);

/// Writes the rows as an array, completely or not at all. Throws Error{kUnavailable}.
void write_json(const std::string& path, std::span<const Row> rows);

}  // namespace sluice::perf
