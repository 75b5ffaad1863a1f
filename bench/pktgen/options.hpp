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
  std::uint16_t block_elements = 256;  ///< as fit a frame
  std::uint32_t job = 1;
  PatternOptions pattern;

  // The load.
  double rate = 0;  ///< DATA packets a second, 0: as fast as possible
  bool find_rate = false;
  double loss = 0;  ///< share of frames, each way
  Duration rto_min{};
  Duration duration{};
  Duration warmup{};
  std::uint32_t check_every = 64;  ///< 0: nothing is checked

  // The way to the aggregator.
  bool in_memory = false;
  ContextOptions context;         ///< where it is not in memory
  Duration aggregator_timeout{};  ///< the same
  std::uint16_t lanes = 1;        ///< each with a generator, on a thread
  std::vector<int> cpu;           ///< of the generator, of several lanes one each
  std::optional<int> lane_cpu{};  ///< in memory: of a thread for the lane alone

  std::string json_path;  ///< empty: none
  bool live = false;      ///< also where standard error is no terminal
  bool help = false;      ///< print help() and do nothing else; the rest is not set
  bool version = false;   ///< the same with the version
};

/// `arguments` without the program's name; what they leave out of Options::context is as in
/// `environment`. Throws bench::UsageError.
Options parse_options(const std::vector<std::string>& arguments, const ContextOptions& environment);

/// Bytes of the longest IP packet of a session whose longest UDP payload is `payload_bytes`.
std::uint16_t frame_of(std::uint16_t payload_bytes);

/// The job that they describe.
GeneratorOptions generator_options(const Options& options);

/// What --help prints.
bench::Help help();

}  // namespace sluice::pktgen
