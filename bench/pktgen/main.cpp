// sluice-pktgen: the packet-level throughput test of an aggregator.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <pthread.h>
#include <unistd.h>

#include <sluice/sluice.hpp>

#include "bench/json_file.hpp"
#include "bench/pktgen/in_memory.hpp"
#include "bench/pktgen/over_ports.hpp"
#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/pktgen_report.hpp"
#include "common/base/version.hpp"

namespace {

using namespace sluice;
using namespace sluice::pktgen;

enum ExitStatus { kRight = 0, kWrong = 1, kUsage = 2 };

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// The first Ctrl-C requests the report, the second ends the program.
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

Supervision supervision(const Options& options) {
  std::signal(SIGINT, on_interrupt);
  Supervision supervision{.live = {}, .stopped = [] { return interrupted.load(); }};
  if (options.live || isatty(STDERR_FILENO) == 1)
    supervision.live = [&options](std::uint16_t lane, const Window& window) {
      const std::string of = options.lanes == 1 ? "" : "lane " + std::to_string(lane) + ": ";
      std::fprintf(stderr, "%s%s\n", of.c_str(), live_line(window).c_str());
    };
  return supervision;
}

ExitStatus fail(ExitStatus status, const std::string& what) {
  std::fprintf(stderr, "sluice-pktgen: %s\n", what.c_str());
  return status;
}

ExitStatus run(const Options& options) {
  if (!options.json_path.empty()) bench::check_writable(options.json_path);
  if (!options.cpu.empty()) pin(pthread_self(), options.cpu.front());
  const auto run_it = options.in_memory ? run_in_memory : run_over_ports;
  const Report report = run_it(options, supervision(options));
  std::fputs(to_text(options, report).c_str(), stdout);
  if (!options.json_path.empty()) write_json(options.json_path, options, report);
  if (report.right()) return kRight;
  const Tally& tally = report.total.tally;
  return fail(kWrong, std::to_string(tally.results_wrong) + " results are wrong, and " +
                          std::to_string(tally.results_missed) +
                          " streams of ranks did not end in time");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto asks_for_help = [](const std::string& argument) {
    return argument == "--help" || argument == "-h" || argument == "--version";
  };
  const bool any_environment_will_do =
      std::any_of(arguments.begin(), arguments.end(), asks_for_help);
  const Options options = parse_options(
      arguments, any_environment_will_do ? ContextOptions() : ContextOptions::from_environment());
  if (!options.help && !options.version) return run(options);
  const std::string text = options.help ? bench::to_text(help()) : version_line("sluice-pktgen");
  std::fputs(text.c_str(), stdout);
  return kRight;
} catch (const bench::UsageError& error) {
  return fail(kUsage, error.what());
} catch (const std::exception& error) {
  return fail(kWrong, error.what());
}
