// sluice-perf: times AllReduce with Sluice and checks its results, as nccl-tests do.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

#include "bench/json_file.hpp"
#include "bench/perf/measure.hpp"
#include "bench/perf/mix.hpp"
#include "bench/perf/perf_options.hpp"
#include "bench/perf/perf_report.hpp"
#include "common/base/version.hpp"

namespace {

using namespace sluice;
using namespace sluice::perf;

enum ExitStatus { kRight = 0, kWrong = 1, kUsage = 2 };

void print(bool by_this_rank, const std::string& text) {
  if (!by_this_rank) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Measures every case in the order of the table; prints a line of variants as soon as it is
/// complete.
std::vector<Row> measure_all(Communicator& job, const Options& options, Buffers& buffers) {
  std::vector<Row> rows;
  std::uint64_t line = 0;
  for (const ElementType type : options.types)
    for (const Reduction reduction : options.reductions) {
      if (!is_valid(type, reduction)) continue;
      for (const double density : options.densities)
        for (const std::uint64_t bytes : options.sizes()) {
          const std::uint64_t seed = mix(options.seed, line++);
          for (const bool in_place : options.in_place)
            rows.push_back(measure(job, options,
                                   {.bytes = bytes,
                                    .type = type,
                                    .reduction = reduction,
                                    .density = density,
                                    .in_place = in_place,
                                    .seed = seed},
                                   buffers));
          const std::span<const Row> all(rows);
          print(job.rank() == 0, table_line(all.last(options.in_place.size())));
        }
    }
  return rows;
}

JobOptions job_options(const Options& options) {
  JobOptions job = JobOptions::from_environment();
  if (options.block_elements) job.block_elements = *options.block_elements;
  if (options.streams) job.streams = *options.streams;
  return job;
}

ExitStatus run(const Options& options, const JobOptions& job_options) {
  const bool reporting = job_options.rank == 0;
  const bool writes_json = reporting && !options.json_path.empty();
  if (writes_json) bench::check_writable(options.json_path);

  Context context(ContextOptions::from_environment());
  Buffers buffers(options);
  Communicator job(context, job_options);
  print(reporting, table_header(options, job.world_size()));
  const std::vector<Row> rows = measure_all(job, options, buffers);
  job.leave();

  print(reporting, table_footer(rows));
  if (writes_json) write_json(options.json_path, rows);
  return total_wrong(rows) == 0 ? kRight : kWrong;
}

}  // namespace

int main(int argc, char** argv) {
  std::string who = "sluice-perf: ";
  try {
    const Options options = parse_options({argv + 1, argv + argc});
    if (options.help) {
      print(true, bench::to_text(help()));
      return kRight;
    }
    if (options.version) {
      print(true, version_line("sluice-perf"));
      return kRight;
    }
    const JobOptions job = job_options(options);
    who += "rank " + std::to_string(job.rank) + ": ";
    return run(options, job);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s%s\n", who.c_str(), error.what());
    return kUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s%s\n", who.c_str(), error.what());
    return kWrong;
  }
}
