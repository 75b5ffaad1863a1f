// Runs simulations, one per seed, and prints how to replay the one that fails.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <string_view>

#include "tests/sim/must_happen.hpp"
#include "tests/sim/simulation.hpp"

namespace {

using namespace sluice::sim;

struct Options {
  std::uint64_t from = 0;
  std::uint64_t seeds = 1000;
  bool trace = false;
  bool keep_going = false;
  bool coverage = false;
  bool check_coverage = false;
};

/// A first seed that most likely was never run.
std::uint64_t fresh_seed() {
  std::random_device source;
  return (std::uint64_t{source()} << 16 ^ source()) % 1'000'000'000'000 * 1000;
}

[[noreturn]] void usage(int status) {
  std::printf(
      "usage: sluice-sim [--seeds N] [--from S|fresh] [--seed X] [--trace] [--keep-going]\n"
      "                  [--coverage] [--check-coverage]\n"
      "  --seeds N         how many (1000), beginning with --from S (0), or where nobody was yet\n"
      "  --seed X          this one only\n"
      "  --trace           print every packet\n"
      "  --keep-going      do not stop at the first failure\n"
      "  --coverage        print what happened and was counted, over all seeds\n"
      "  --check-coverage  fail if anything that should happen in a few thousand seeds did not\n");
  std::exit(status);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] {
      if (i + 1 == argc) usage(2);
      char* end = nullptr;
      const std::uint64_t n = std::strtoull(argv[++i], &end, 10);
      if (*end != '\0') usage(2);
      return n;
    };
    if (word == "--seeds")
      options.seeds = value();
    else if (word == "--from" && i + 1 < argc && std::string_view(argv[i + 1]) == "fresh")
      options.from = fresh_seed(), ++i;
    else if (word == "--from")
      options.from = value();
    else if (word == "--seed")
      options.from = value(), options.seeds = 1;
    else if (word == "--trace")
      options.trace = true;
    else if (word == "--keep-going")
      options.keep_going = true;
    else if (word == "--coverage")
      options.coverage = true;
    else if (word == "--check-coverage")
      options.check_coverage = true;
    else
      usage(word == "--help" ? 0 : 2);
  }
  return options;
}

/// The failure; empty if there was none.
std::string run(std::uint64_t seed, bool trace, Coverage& coverage) {
  const Scenario scenario = make_scenario(seed);
  if (trace) std::printf("%s", describe(scenario).c_str());
  try {
    Simulation simulation(scenario, trace);
    simulation.run();
    simulation.add_to(coverage);
    return {};
  } catch (const std::exception& problem) {
    return std::string(name(scenario.theme)) + ": " + problem.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Coverage coverage;
  std::uint64_t failures = 0;
  std::uint64_t ran = 0;
  for (std::uint64_t seed = options.from; seed < options.from + options.seeds; ++seed) {
    ++ran;
    const std::string problem = run(seed, options.trace, coverage);
    if (problem.empty()) continue;
    ++failures;
    std::printf("seed %llu: %s\n  replay: %s --seed %llu --trace\n",
                static_cast<unsigned long long>(seed), problem.c_str(), argv[0],
                static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    if (!options.keep_going) break;
  }
  if (options.coverage)
    for (const auto& [name, count] : coverage)
      std::printf("%-45s %llu\n", name.c_str(), static_cast<unsigned long long>(count));
  if (options.check_coverage && failures == 0)
    for (const std::string& name : missing_of(coverage)) {
      ++failures;
      std::printf("never happened: %s\n", name.c_str());
    }
  std::printf("%llu seeds from %llu, %llu failures\n", static_cast<unsigned long long>(ran),
              static_cast<unsigned long long>(options.from),
              static_cast<unsigned long long>(failures));
  return failures == 0 ? 0 : 1;
}
