#include "bench/pktgen/pktgen_report.hpp"

#include <array>
#include <cinttypes>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "bench/format.hpp"
#include "bench/json_file.hpp"
#include "common/base/version.hpp"

namespace sluice::pktgen {
namespace {

using bench::format;
using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, Stage>, kStages> kStageNames{{
    {"receive", Stage::kReceive},
    {"validate", Stage::kValidate},
    {"sum", Stage::kSum},
    {"build", Stage::kBuild},
    {"transmit", Stage::kTransmit},
    {"other", Stage::kOther},
}};

constexpr std::array<std::pair<const char*, double>, 4> kPercentiles{
    {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}}};

/// Figures of packets in one direction, per second.
struct Rates {
  Rates(const Traffic& traffic, double seconds)
      : packets(static_cast<double>(traffic.packets) / seconds),
        bits(8 * static_cast<double>(traffic.frame_bytes) / seconds),
        payload_bits(8 * static_cast<double>(traffic.block_bytes) / seconds) {}
  double packets;
  double bits;
  double payload_bits;
};

double microseconds(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e3;
}

double core_ghz(const Window& window) {
  return static_cast<double>(window.end.clock - window.begin.clock) / window.lanes /
         window.seconds() / 1e9;
}

// ---------------------------------------------------------------------------------------- text
/// For the case that the aggregator's frames are shorter than requested.
std::string cut_line(const Options& options, const Report& report) {
  const std::uint16_t frame = frame_of(report.session.payload_bytes);
  if (frame >= options.frame_bytes) return "";
  std::string line =
      format("# the aggregator's frames have %u B, not %u as asked", frame, options.frame_bytes);
  if (report.geometry.block_elements != options.block_elements)
    line += format(": blocks of %u elements, not %u", report.geometry.block_elements,
                   options.block_elements);
  return line + "\n";
}

std::string where(const Options& options) {
  const std::string lanes = options.lanes == 1 ? "" : format("%u lanes ", options.lanes);
  if (options.in_memory) return lanes + "in memory";
  return lanes + (lanes.empty() ? "" : "of ") + options.context.aggregators.front();
}

std::string heading(const Options& options, const Report& report) {
  const std::string rate = options.find_rate     ? "searched"
                           : options.rate == 0.0 ? "as fast as possible"
                                                 : format("%.6g DATA packets/s", options.rate);
  const std::string_view type = name(report.geometry.type.element());
  const std::string_view overlap = name(options.pattern.overlap);
  return format(
      "# sluice-pktgen: %u workers, %u streams of %u columns, blocks of %u %.*s, frames of %u B\n"
      "# density %g, overlap %.*s, loss %g, rate %s, %s\n",
      options.workers, report.session.streams, report.geometry.columns,
      report.geometry.block_elements, static_cast<int>(type.size()), type.data(),
      frame_of(report.session.payload_bytes), options.pattern.density,
      static_cast<int>(overlap.size()), overlap.data(), options.loss, rate.c_str(),
      where(options).c_str());
}

/// For an aggregator whose other lanes were not used.
std::string lane_0_line(const Options& options, const Report& report) {
  if (report.session.shards == options.lanes) return "";
  return format("# the aggregator has %u lanes: this is the share of lane 0, %u streams\n",
                report.session.shards, report.session.streams_of(0));
}

std::string traffic_line(const char* name, const Rates& rates) {
  return format("%-18s %10.4f Mpps %10.3f Gbit/s %10.3f Gbit/s of payload\n", name,
                rates.packets / 1e6, rates.bits / 1e9, rates.payload_bits / 1e9);
}

std::string latency_line(const Histogram& latencies) {
  std::string line = format("latency (us)       min %.1f", microseconds(latencies.min()));
  for (const auto& [name, share] : kPercentiles)
    line += format("  %g%% %.1f", share * 100, microseconds(latencies.at(share)));
  return line + format("  max %.1f\n", microseconds(latencies.max()));
}

std::string lane_lines(const StageCycles& cycles, double ghz, unsigned lanes) {
  const double all = cycles.per_packet();
  std::string lines = format("lane               %.0f cycles/packet: %.3f Mpps at %.2f GHz%s\n",
                             all, all == 0 ? 0 : ghz * 1e3 / all, ghz, lanes == 1 ? "" : ", each");
  for (const auto& [name, stage] : kStageNames)
    lines += format("  %-16.*s %8.1f cycles/packet %6.1f%%\n", static_cast<int>(name.size()),
                    name.data(), cycles.per_packet(stage), 100 * cycles.share(stage));
  return lines;
}

/// For several lanes: the part of each in the sums above.
std::string share_lines(const std::vector<LaneReport>& lanes) {
  std::string lines;
  if (lanes.size() == 1) return lines;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const Window& window = lanes[i].window;
    lines += format("  of lane %-8zu %s  busy %.0f%%", i, live_line(window).c_str(),
                    100 * window.busy_share());
    if (const std::uint64_t frames = window.handed_over(); frames != 0)
      lines += format("  handed over %" PRIu64, frames);
    lines += "\n";
  }
  return lines;
}

std::string drop_lines(const char* where, const Drops& drops) {
  std::string lines;
  for (const auto& [reason, count] : drops)
    lines += format("  dropped %-12s %-24s %12" PRIu64 "\n", where, reason.c_str(), count);
  return lines;
}

std::string verdict(const Window& trial) {
  if (trial.offered == 0) return "where the search begins";
  return sustained(trial) ? "sustained" : "not sustained";
}

std::string trial_lines(const std::vector<Window>& trials) {
  std::string lines;
  for (const Window& trial : trials)
    lines += format("trial: offered %.4f Mpps of DATA, sent %.4f, lost %" PRIu64 ": %s\n",
                    (trial.offered == 0 ? trial.data_per_second() : trial.offered) / 1e6,
                    trial.data_per_second() / 1e6, trial.losses(), verdict(trial).c_str());
  return lines;
}

// ---------------------------------------------------------------------------------------- JSON
Json traffic_json(const Traffic& traffic, double seconds) {
  const Rates rates(traffic, seconds);
  return {{"packets", traffic.packets},         {"frame_bytes", traffic.frame_bytes},
          {"block_bytes", traffic.block_bytes}, {"packets_per_s", rates.packets},
          {"bits_per_s", rates.bits},           {"payload_bits_per_s", rates.payload_bits}};
}

Json latency_json(const Histogram& latencies) {
  Json json = {{"count", latencies.count()}, {"min", microseconds(latencies.min())}};
  for (const auto& [name, share] : kPercentiles) json[name] = microseconds(latencies.at(share));
  json["max"] = microseconds(latencies.max());
  return json;
}

template <class Counters>
Json counters_json(const Counters& counters) {
  Json json = Json::object();
  counters.for_each(
      [&](std::string_view name, std::uint64_t value) { json[std::string(name)] = value; });
  return json;
}

Json total_json(const Reading& total) {
  return {{"generator", counters_json(total.tally)},
          {"lane", total.lane ? counters_json(total.lane->engine) : Json(nullptr)}};
}

Json stages_json(const StageCycles& cycles) {
  Json json = Json::object();
  for (const auto& [name, stage] : kStageNames) json[std::string(name)] = cycles.per_packet(stage);
  return json;
}

Json lane_json(const Window& window) {
  const auto cycles = window.lane_cycles();
  if (!cycles) return nullptr;
  return {{"cycles_per_packet", cycles->per_packet()},
          {"stages", stages_json(*cycles)},
          {"drops", window.lane_drops()}};
}

Json window_json(const Window& window) {
  return {{"seconds", window.seconds()},
          {"offered_data_per_s", window.offered == 0 ? Json(nullptr) : Json(window.offered)},
          {"data_per_s", window.data_per_second()},
          {"to_aggregator", traffic_json(window.to_aggregator(), window.seconds())},
          {"from_aggregator", traffic_json(window.from_aggregator(), window.seconds())},
          {"handled_packets_per_s", window.handled_per_second()},
          {"latency_us", latency_json(window.latencies)},
          {"core_ghz", core_ghz(window)},
          {"generator",
           {{"cycles_per_packet", window.generator_cycles_per_packet()},
            {"busy_share", window.busy_share()},
            {"cpu_share", window.cpu_share()},
            {"handed_over", window.handed_over()},
            {"drops", window.generator_drops()}}},
          {"lane", lane_json(window)},
          {"loss",
           {{"resent", window.resent()},
            {"probed", window.probed()},
            {"missed", window.missed()},
            {"dropped", window.dropped()}}}};
}

}  // namespace

std::string to_text(const Options& options, const Report& report) {
  const Window& window = report.window;
  const double seconds = window.seconds();
  std::string text =
      heading(options, report) + cut_line(options, report) + lane_0_line(options, report);
  text += trial_lines(report.trials);
  text += traffic_line("to aggregator", Rates(window.to_aggregator(), seconds));
  text += traffic_line("from aggregator", Rates(window.from_aggregator(), seconds));
  text += format("both               %10.4f Mpps\n", window.handled_per_second() / 1e6);
  text += latency_line(window.latencies);
  text += format(
      "generator          %.0f cycles/packet, busy %.0f%% of the time, %.0f%% of a core\n",
      window.generator_cycles_per_packet(), 100 * window.busy_share(), 100 * window.cpu_share());
  if (const auto cycles = window.lane_cycles())
    text += lane_lines(*cycles, core_ghz(window), window.lanes);
  text += format("loss               resent %" PRIu64 ", probed %" PRIu64 ", missed %" PRIu64
                 ", dropped %" PRIu64 "\n",
                 window.resent(), window.probed(), window.missed(), window.dropped());
  text += share_lines(report.lanes);
  text += drop_lines("generator", window.generator_drops());
  text += drop_lines("lane", window.lane_drops());
  const Tally& total = report.total.tally;
  text += format("results            %" PRIu64 ", checked %" PRIu64 ", wrong %" PRIu64 "\n",
                 total.results, total.results_checked, total.results_wrong);
  return text;
}

void write_json(const std::string& path, const Options& options, const Report& report) {
  Json json = {{"version", version()},
               {"build", build_id()},
               {"workers", options.workers},
               {"streams", report.session.streams},
               {"columns", report.geometry.columns},
               {"block_elements", report.geometry.block_elements},
               {"history", report.session.history},
               {"type", name(report.geometry.type.element())},
               {"frame_bytes", options.frame_bytes},
               {"payload_bytes", report.session.payload_bytes},
               {"density", options.pattern.density},
               {"overlap", name(options.pattern.overlap)},
               {"rounds", options.pattern.rows},
               {"loss", options.loss},
               {"seed", options.pattern.seed},
               {"in_memory", options.in_memory},
               {"lanes", options.lanes}};
  json["measured"] = window_json(report.window);
  json["trials"] = Json::array();
  for (const Window& trial : report.trials) {
    Json row = window_json(trial);
    row["sustained"] = sustained(trial);
    json["trials"].push_back(row);
  }
  json["total"] = total_json(report.total);
  json["of_lanes"] = Json::array();
  for (const LaneReport& lane : report.lanes)
    json["of_lanes"].push_back(
        {{"measured", window_json(lane.window)}, {"total", total_json(lane.total)}});
  json["right"] = report.right();
  bench::write_json(path, json);
}

std::string live_line(const Window& window) {
  const double seconds = window.seconds();
  const Rates to(window.to_aggregator(), seconds);
  const Rates from(window.from_aggregator(), seconds);
  return format(
      "to %.3f Mpps %.2f Gbit/s  from %.3f Mpps %.2f Gbit/s  50%% %.1f us  99%% %.1f us  "
      "resent %" PRIu64 "  dropped %" PRIu64,
      to.packets / 1e6, to.bits / 1e9, from.packets / 1e6, from.bits / 1e9,
      microseconds(window.latencies.at(0.5)), microseconds(window.latencies.at(0.99)),
      window.resent() + window.probed(), window.dropped());
}

}  // namespace sluice::pktgen
