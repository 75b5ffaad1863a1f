// The command line of sluice-pktgen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

#include "bench/flags.hpp"
#include "bench/pktgen/generator.hpp"
#include "bench/usage_error.hpp"
#include "common/base/time.hpp"

namespace sluice::pktgen {

struct Options {
  // The job.
  std::uint16_t frame_bytes = 1500;  ///< of an IP packet
  std::uint16_t workers = 8;
  std::uint16_t streams = 64;
  std::uint16_t block_elements = 256;  ///< as many as fit into a frame
  std::uint32_t job = 1;
  PatternOptions pattern;

  // The load.
  double rate = 0;  ///< DATA packets per second; 0: as fast as possible
  bool find_rate = false;
  double loss = 0;  ///< share of frames, in each direction
  Duration rto_min{};
  Duration duration{};
  Duration warmup{};
  std::uint32_t check_every = 64;  ///< 0: nothing is checked

  // The path to the aggregator.
  bool in_memory = false;
  ContextOptions context;         ///< unless it is in memory
  Duration aggregator_timeout{};  ///< unless it is in memory
  std::uint16_t lanes = 1;        ///< each with a generator, on its own thread
  std::vector<int> cpu;           ///< of the generators; with several lanes one for each
  std::optional<int> lane_cpu{};  ///< in memory: of a separate thread for the lane

  std::string json_path;  ///< empty: none
  bool live = false;      ///< even if standard error is no terminal
  bool help = false;      ///< print help() and do nothing else; the other members are not set
  bool version = false;   ///< the same with the version
};

/// `arguments` are without the program's name. What they do not set in Options::context is taken
/// from `environment`. Throws bench::UsageError.
Options parse_options(const std::vector<std::string>& arguments, const ContextOptions& environment);

/// The size of the longest IP packet of a session whose longest UDP payload is `payload_bytes`.
std::uint16_t frame_of(std::uint16_t payload_bytes);

/// The job that the options describe.
GeneratorOptions generator_options(const Options& options);

/// What --help prints.
bench::Help help();

}  // namespace sluice::pktgen
