#include "bench/pktgen/pktgen_options.hpp"

#include <algorithm>
#include <limits>
#include <sstream>

#include <sluice/error.hpp>

#include "bench/flags.hpp"
#include "common/base/limits.hpp"
#include "common/config/address.hpp"
#include "common/config/job_name.hpp"
#include "common/protocol/geometry.hpp"

namespace sluice::pktgen {
namespace {

using bench::FlagGroup;
using bench::UsageError;
using bench::Values;

constexpr std::uint16_t kIpAndUdpBytes = 28;
constexpr std::uint16_t kMinFrame = limits::kMinMtu;  // it becomes SLUICE_MTU
constexpr std::uint16_t kMaxFrame = limits::kMaxMtu;
constexpr std::uint16_t kDefaultBlockElements = 256;

std::vector<FlagGroup> flags() {
  const auto job =
      FlagGroup("The job")
          .value("workers,w", "8", "ranks, all played by this process, 1..256")
          .value("streams,s", "64", "streams, 1..1024; the aggregator has a limit of its own")
          .optional_value("block-elements",
                          "elements of a block, 1..16384, as fit a frame (default: 256, halved "
                          "until they fit)")
          .value("frame,f", "1500",
                 "bytes of the longest IP packet, 576..9698, at most the MTU of "
                 "the port and of the aggregator's")
          .value("type,d", "float",
                 "float, double, half, bfloat16, int8, "
                 "uint8, int16, int32 or int64")
          .value("density", "1", "share of each rank's blocks that are not zero, 0..1")
          .value("overlap", "random", perf::kOverlapHelp)
          .value("rounds", "256", "of each stream in a dense op: blocks of a column, 1..4096")
          .value("seed", "1", "of the blocks' positions and of --loss, 0..2^64-1")
          .value("job", "1", "id of the job at the aggregator, 0..4294967295, or its name");
  const auto load =
      FlagGroup("The load")
          .value("rate,r", "0", "DATA packets to offer in a second, 0..1e9; 0: as fast as possible")
          .on("find-rate", "search the highest rate without loss (RFC 2544): trials of --duration")
          .value("duration,t", "5", "seconds to measure for, 0.05..86400")
          .value("warmup", "0.5", "seconds before, not measured, 0..3600")
          .value("rto-min", "20",
                 "milliseconds, floor of the time-out after which DATA is sent again, "
                 "0.1..10000; workers have 4: this one is no loss yet where a core is shared")
          .value("loss", "0", "share of frames to be lost on purpose, each way, 0..0.5")
          .value("check,c", "sample", "results to be checked to the last bit: none, sample or all");
  const auto way =
      FlagGroup("The way to the aggregator (SLUICE_MTU and the like do as for workers)")
          .optional_value("aggregator,a",
                          "vhost:DIRECTORY or IPV4[:PORT] (default: the first of "
                          "SLUICE_AGGREGATORS)")
          .optional_value("port,p",
                          "DPDK device of the network port, such as 0000:3b:00.0 or "
                          "net_af_packet0,iface=eth1 (default: SLUICE_PORT; none "
                          "is needed for vhost)")
          .optional_value("address",
                          "own address on it, IPV4/PREFIX[@GATEWAY] (default: "
                          "SLUICE_ADDRESS)")
          .value("aggregator-timeout", "5",
                 "seconds of silence after which the aggregator is lost, 0.1..600")
          .on("in-memory",
              "no aggregator elsewhere: its lanes in this process, behind ports in memory")
          .value("lanes", "1",
                 "lanes of the aggregator, 1..8, each with a generator for its share of the "
                 "streams, on a thread; one that is not in memory must have as many, but 1 "
                 "measures lane 0 of any")
          .optional_value("cpu",
                          "core to run on; of several lanes one core each; with --in-memory and "
                          "one lane also CORE,CORE, the second one for the lane, which takes turns "
                          "with the generator otherwise");
  const auto report = FlagGroup("The report")
                          .file("json", "also write it to this file")
                          .on("live", "a line every second also if standard error is no terminal")
                          .on("help,h", "print this and exit")
                          .on("version", "print version and build, and exit");
  return {job, load, way, report};
}

std::uint16_t payload_of(std::uint16_t frame_bytes) {
  return static_cast<std::uint16_t>(frame_bytes - kIpAndUdpBytes);
}

ElementType type_of(const Values& values) {
  const auto type = parse_element_type(values.text("type"));
  if (!type)
    values.refuse("type", "float, double, half, bfloat16, int8, uint8, int16, int32, int64");
  return *type;
}

perf::Overlap overlap_of(const Values& values) {
  const auto overlap = perf::parse_overlap(values.text("overlap"));
  if (!overlap) values.refuse("overlap", perf::kOverlapNames);
  return *overlap;
}

std::uint32_t check_every(const Values& values) {
  const std::string text = values.text("check");
  if (text == "none") return 0;
  if (text == "all") return 1;
  if (text != "sample") values.refuse("check", "none, sample, all");
  return 64;
}

Duration seconds(const Values& values, const char* flag, double lowest, double highest) {
  return Duration(static_cast<Duration::rep>(values.number(flag, lowest, highest) * 1e9));
}

int core(const Values& values, const std::string& text) {
  const auto number = bench::parse_number(text);
  if (!number || *number < 0 || *number > 1023 || *number != static_cast<int>(*number))
    values.refuse("cpu", "0..1023, with --in-memory also two, separated by a comma");
  return static_cast<int>(*number);
}

void read_cores(const Values& values, Options& options) {
  if (!values.given("cpu")) return;
  const std::string text = values.text("cpu");
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    options.cpu.push_back(core(values, text.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (options.lanes > 1) {
    if (options.cpu.size() != options.lanes)
      values.refuse("cpu", std::to_string(options.lanes) + " cores, one for each lane");
    return;
  }
  if (options.cpu.size() > 1 && !options.in_memory)
    values.refuse("cpu", "one core, as the lane is not in memory");
  if (options.cpu.size() > 2) values.refuse("cpu", "one core, or two");
  if (options.cpu.size() < 2) return;
  options.lane_cpu = options.cpu.back();
  options.cpu.pop_back();
  if (*options.lane_cpu == options.cpu.front()) values.refuse("cpu", "two different cores");
}

void read_lanes(const Values& values, Options& options) {
  options.lanes = static_cast<std::uint16_t>(values.integer("lanes", 1, limits::kMaxLanes));
  if (options.lanes == 1) return;
  if (options.streams < options.lanes)
    values.refuse("lanes", "at most as many as streams, " + std::to_string(options.streams));
}

/// The result of `parse` for a flag's value; its Error names flag, value and form.
template <class Parse>
void must_parse(const Values& values, const char* flag, Parse parse) {
  try {
    parse("--" + std::string(flag), values.text(flag));
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void read_way(const Values& values, Options& options) {
  ContextOptions& context = options.context;
  if (values.given("aggregator")) {
    must_parse(values, "aggregator", config::parse_aggregator_address);
    context.aggregators = {values.text("aggregator")};
  }
  if (context.aggregators.empty())
    throw UsageError(
        "no aggregator: --aggregator vhost:DIRECTORY or IPV4[:PORT] expected, or --in-memory");
  context.aggregators.resize(1);
  if (values.given("port")) context.port = values.text("port");
  if (values.given("address")) {
    must_parse(values, "address", config::parse_interface_address);
    context.address = values.text("address");
  }
  context.mtu = options.frame_bytes;
  if (options.loss > 0) {
    std::ostringstream faults;
    faults << "seed=" << options.pattern.seed << ",loss=" << options.loss << ",direction=both";
    context.faults = faults.str();
  }
}

/// A size that was requested is never reduced silently.
std::uint16_t block_elements_of(const Values& values, ElementType type, std::uint16_t frame_bytes) {
  const std::size_t payload = payload_of(frame_bytes);
  if (!values.given("block-elements"))
    return static_cast<std::uint16_t>(fitting_block_elements(kDefaultBlockElements, type, payload));
  const auto asked = values.integer("block-elements", 1, wire::kMaxBlockElements);
  const std::size_t most = most_block_elements(type, payload);
  if (asked > most)
    values.refuse("block-elements", "1.." + std::to_string(most) + " of " +
                                        std::string(name(type)) + " in frames of " +
                                        std::to_string(frame_bytes) + " B");
  return static_cast<std::uint16_t>(asked);
}

Options interpret(const Values& values) {
  Options options;
  options.frame_bytes = static_cast<std::uint16_t>(values.integer("frame", kMinFrame, kMaxFrame));
  options.workers = static_cast<std::uint16_t>(values.integer("workers", 1, kMaxRanks));
  options.streams = static_cast<std::uint16_t>(values.integer("streams", 1, wire::kMaxStreams));
  const auto job = config::job_id_of(values.text("job"));
  if (!job) values.refuse("job", config::kJobForms);
  options.job = *job;
  options.pattern = {.type = type_of(values),
                     .rows = static_cast<Row>(values.integer("rounds", 1, kMaxRows)),
                     .density = values.number("density", 0, 1),
                     .overlap = overlap_of(values),
                     .seed = values.integer("seed", 0, std::numeric_limits<std::uint64_t>::max())};
  options.block_elements = block_elements_of(values, options.pattern.type, options.frame_bytes);
  options.rate = values.number("rate", 0, 1e9);
  options.find_rate = values.is_set("find-rate");
  options.loss = values.number("loss", 0, 0.5);
  options.rto_min =
      Duration(static_cast<Duration::rep>(values.number("rto-min", 0.1, 10'000) * 1e6));
  options.aggregator_timeout = seconds(values, "aggregator-timeout", limits::kMinTimeoutMs / 1e3,
                                       limits::kMaxTimeoutMs / 1e3);
  options.duration = seconds(values, "duration", 0.05, 86'400);
  options.warmup = seconds(values, "warmup", 0, 3'600);
  options.check_every = check_every(values);
  options.in_memory = values.is_set("in-memory");
  options.json_path = values.text("json");
  options.live = values.is_set("live");
  read_lanes(values, options);
  read_cores(values, options);
  return options;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments,
                      const ContextOptions& environment) {
  const Values values(flags(), arguments);
  Options options;
  options.help = values.is_set("help");
  options.version = values.is_set("version");
  if (options.help || options.version) return options;
  options = interpret(values);
  options.context = environment;
  if (!options.in_memory) read_way(values, options);
  return options;
}

std::uint16_t frame_of(std::uint16_t payload_bytes) {
  return static_cast<std::uint16_t>(payload_bytes + kIpAndUdpBytes);
}

GeneratorOptions generator_options(const Options& options) {
  return {.job = options.job,
          .workers = options.workers,
          .streams = options.streams,
          .block_elements = options.block_elements,
          .payload_bytes = payload_of(options.frame_bytes),
          .pattern = options.pattern,
          .rto_min = options.rto_min,
          .aggregator_timeout = options.aggregator_timeout,
          .check_every = options.check_every};
}

bench::Help help() {
  return {
      .usage = "sluice-pktgen [--aggregator ADDRESS | --in-memory] [flags]",
      .about =
          "Tests the packet rate of an aggregator with the real protocol: plays all ranks of a "
          "job\n"
          "behind one port, from a thread for each lane, and measures what the aggregator "
          "sustains.\n"
          "Exit status: 0 all right, 1 a wrong result or an error, 2 a wrong flag.\n",
      .flags = flags(),
      .notes =
          "Rates are of frames: Ethernet, IPv4 and UDP headers are counted, preamble and gap are\n"
          "not. Payload is that of blocks alone. Latency is from sending the DATA that completes "
          "a\n"
          "round to its RESULT. Cycles are those of the core's constant counter, per packet\n"
          "received or sent. docs/pktgen.md explains the rest.\n"};
}

}  // namespace sluice::pktgen
