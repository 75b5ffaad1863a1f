#include "bench/perf/perf_report.hpp"

#include <algorithm>
#include <cinttypes>

#include <nlohmann/json.hpp>

#include "bench/format.hpp"
#include "bench/json_file.hpp"
#include "common/base/version.hpp"

namespace sluice::perf {
namespace {

using bench::format;

std::string text(std::string_view view) {
  return std::string(view);
}

std::string variant_columns(const Row& row) {
  const std::string wrong = row.wrong ? std::to_string(*row.wrong) : "N/A";
  return format(" %11.1f %7.2f %7.2f %8s %13" PRIu64 " %8" PRIu64, row.time_us.median,
                row.algbw_gbps(), row.busbw_gbps(), wrong.c_str(), row.wire_bytes, row.retransmits);
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json object = {
      {"size_bytes", row.size_bytes},
      {"count", row.count},
      {"type", name(row.type)},
      {"redop", name(row.redop)},
      {"encoding", name(row.encoding)},
      {"ranks", row.ranks},
      {"block_elements", row.block_elements},
      {"density", row.density},
      {"union_density", row.union_density},
      {"overlap", name(row.overlap)},
      {"in_place", row.in_place},
      {"memory", name(row.memory)},
      {"iterations", row.iterations},
      {"time_us_median", row.time_us.median},
      {"time_us_min", row.time_us.min},
      {"time_us_p99", row.time_us.p99},
      {"algbw_gbps", row.algbw_gbps()},
      {"busbw_gbps", row.busbw_gbps()},
      {"wrong", nullptr},
      {"wire_bytes", row.wire_bytes},
      {"retransmits", row.retransmits},
  };
  object["version"] = version();
  object["build"] = build_id();
  if (row.wrong) object["wrong"] = *row.wrong;
  return object;
}

}  // namespace

Times summarise(std::span<const std::int64_t> nanoseconds) {
  std::vector<double> sorted;
  for (const std::int64_t time : nanoseconds) sorted.push_back(static_cast<double>(time) / 1e3);
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return {.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2,
          .min = sorted.front(),
          .p99 = sorted[(n * 99 + 99) / 100 - 1]};
}

double Row::algbw_gbps() const {
  return time_us.median == 0 ? 0 : static_cast<double>(size_bytes) / (time_us.median * 1e3);
}

double Row::busbw_gbps() const {
  return algbw_gbps() * 2.0 * (ranks - 1) / ranks;
}

std::string table_header(const Options& options, std::uint16_t ranks) {
  const bool by_factor = options.step_factor > 1;
  const std::string settings = format(
      "# sluice-perf all_reduce: ranks %u minBytes %" PRIu64 " maxBytes %" PRIu64 " step %" PRIu64
      "(%s) warmup iters %u iters %u check %d encoding %s overlap %s bitmap %d memory %s seed "
      "%" PRIu64 "\n#\n",
      ranks, options.min_bytes, options.max_bytes,
      by_factor ? options.step_factor : options.step_bytes, by_factor ? "factor" : "bytes",
      options.warmup_iterations, options.iterations, options.check,
      text(name(options.encoding)).c_str(), text(name(options.overlap)).c_str(), options.bitmap,
      text(name(options.memory)).c_str(), options.seed);

  std::string variants = format("#%63s", "");
  std::string titles =
      format("#%11s %13s %8s %6s %9s %11s", "size", "count", "type", "redop", "density", "union");
  std::string units =
      format("#%11s %13s %8s %6s %9s %11s", "(B)", "(elements)", "", "", "", "density");
  for (const bool in_place : options.in_place) {
    variants += format(" %-59s", in_place ? "in-place" : "out-of-place");
    titles +=
        format(" %11s %7s %7s %8s %13s %8s", "time", "algbw", "busbw", "#wrong", "wire", "retrans");
    units += format(" %11s %7s %7s %8s %13s %8s", "(us)", "(GB/s)", "(GB/s)", "", "(B)", "");
  }
  return settings + variants + "\n" + titles + "\n" + units + "\n";
}

std::string table_line(std::span<const Row> variants) {
  const Row& row = variants.front();
  std::string line = format(" %11" PRIu64 " %13" PRIu64 " %8s %6s %9.4g %11.6f", row.size_bytes,
                            row.count, text(name(row.type)).c_str(), text(name(row.redop)).c_str(),
                            row.density, row.union_density);
  for (const Row& variant : variants) line += variant_columns(variant);
  return line + "\n";
}

std::string table_footer(std::span<const Row> rows) {
  double bandwidth = 0;
  for (const Row& row : rows) bandwidth += row.busbw_gbps() / static_cast<double>(rows.size());
  const bool checked =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.wrong.has_value(); });
  const std::uint64_t wrong = total_wrong(rows);
  const std::string verdict =
      checked ? std::to_string(wrong) + (wrong == 0 ? " OK" : " FAILED") : "not checked";
  return "# Out of bounds values : " + verdict + "\n" +
         format("# Avg bus bandwidth    : %g\n#\n", bandwidth);
}

std::uint64_t total_wrong(std::span<const Row> rows) {
  std::uint64_t wrong = 0;
  for (const Row& row : rows) wrong += row.wrong.value_or(0);
  return wrong;
}

void write_json(const std::string& path, std::span<const Row> rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& row : rows) array.push_back(to_json(row));
  bench::write_json(path, array);
}

}  // namespace sluice::perf
