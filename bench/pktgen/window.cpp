#include "bench/pktgen/window.hpp"

#include <array>
#include <bit>
#include <type_traits>

#include "common/net/framing.hpp"

namespace sluice::pktgen {
namespace {

void add(Drops& drops, const std::string& name, std::uint64_t count) {
  if (count != 0) drops[name] += count;
}

void add_port(Drops& drops, const net::IoCounters& begin, const net::IoCounters& end) {
  for (const auto& [name, member] : net::kIoCounterNames)
    if (net::is_drop(name) || name == "pool_empty")
      add(drops, std::string(name), end.*member - begin.*member);
}

void add_reasons(Drops& drops, const DropCounters& begin, const DropCounters& end) {
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    add(drops, std::string(name(reason)), end[reason] - begin[reason]);
  }
}

Traffic traffic(std::uint64_t packets, std::uint64_t bytes, std::uint64_t block_bytes) {
  return {packets, bytes + packets * net::kHeaderBytes, block_bytes};
}

/// For structs that consist of counters.
template <class Counters>
void add_counters(Counters& sum, const Counters& other) {
  using Words = std::array<std::uint64_t, sizeof(Counters) / sizeof(std::uint64_t)>;
  static_assert(sizeof(Words) == sizeof(Counters) && std::is_trivially_copyable_v<Counters>);
  auto words = std::bit_cast<Words>(sum);
  const auto others = std::bit_cast<Words>(other);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] += others[i];
  sum = std::bit_cast<Counters>(words);
}

double ratio(double part, double whole) {
  return whole == 0 ? 0 : part / whole;
}

}  // namespace

void Reading::add(const Reading& other) {
  clock += other.clock;
  busy_cycles += other.busy_cycles;
  cpu_time += other.cpu_time;
  add_counters(io, other.io);
  add_counters(tally, other.tally);
  if (!lane || !other.lane) return;
  add_counters(lane->engine, other.lane->engine);
  add_counters(lane->io, other.lane->io);
  lane->cycles.add(other.lane->cycles);
}

void Window::add(const Window& lane) {
  begin.add(lane.begin);
  end.add(lane.end);
  latencies.add(lane.latencies);
  offered += lane.offered;
  lanes += lane.lanes;
}

double Window::seconds() const {
  return std::chrono::duration<double>(end.at - begin.at).count();
}

Traffic Window::to_aggregator() const {
  return traffic(end.io.tx_datagrams - begin.io.tx_datagrams, end.io.tx_bytes - begin.io.tx_bytes,
                 end.tally.block_bytes_sent - begin.tally.block_bytes_sent);
}

Traffic Window::from_aggregator() const {
  return traffic(end.io.rx_datagrams - begin.io.rx_datagrams, end.io.rx_bytes - begin.io.rx_bytes,
                 end.tally.block_bytes_received - begin.tally.block_bytes_received);
}

double Window::handled_per_second() const {
  return ratio(static_cast<double>(to_aggregator().packets + from_aggregator().packets), seconds());
}

double Window::data_per_second() const {
  return ratio(static_cast<double>(end.tally.data_sent - begin.tally.data_sent), seconds());
}

double Window::generator_cycles_per_packet() const {
  const std::uint64_t packets = to_aggregator().packets + from_aggregator().packets;
  return ratio(static_cast<double>(end.busy_cycles - begin.busy_cycles),
               static_cast<double>(packets));
}

double Window::busy_share() const {
  return ratio(static_cast<double>(end.busy_cycles - begin.busy_cycles),
               static_cast<double>(end.clock - begin.clock));
}

double Window::cpu_share() const {
  return ratio(std::chrono::duration<double>(end.cpu_time - begin.cpu_time).count(), seconds());
}

std::optional<StageCycles> Window::lane_cycles() const {
  if (!end.lane || !begin.lane) return std::nullopt;
  return end.lane->cycles.since(begin.lane->cycles);
}

Drops Window::generator_drops() const {
  Drops drops;
  add_port(drops, begin.io, end.io);
  add_reasons(drops, begin.tally.drops, end.tally.drops);
  return drops;
}

Drops Window::lane_drops() const {
  Drops drops;
  if (!end.lane || !begin.lane) return drops;
  add_port(drops, begin.lane->io, end.lane->io);
  add_reasons(drops, begin.lane->engine.drops, end.lane->engine.drops);
  return drops;
}

std::uint64_t Window::resent() const {
  return end.tally.data_resent - begin.tally.data_resent;
}

std::uint64_t Window::probed() const {
  return end.tally.probes_sent - begin.tally.probes_sent;
}

std::uint64_t Window::missed() const {
  return end.tally.results_missed - begin.tally.results_missed;
}

std::uint64_t Window::dropped() const {
  std::uint64_t sum = 0;
  for (const Drops& drops : {generator_drops(), lane_drops()})
    for (const auto& [name, count] : drops) sum += count;
  return sum;
}

std::uint64_t Window::handed_over() const {
  return end.io.rx_handed_over - begin.io.rx_handed_over;
}

Window sum_of(const std::vector<Window>& lanes) {
  Window sum = lanes.front();
  for (std::size_t i = 1; i < lanes.size(); ++i) sum.add(lanes[i]);
  return sum;
}

bool sustained(const Window& trial) {
  constexpr double kReached = 0.99;
  return trial.offered > 0 && trial.losses() == 0 &&
         trial.data_per_second() >= kReached * trial.offered;
}

std::size_t best_of(const std::vector<Window>& trials) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < trials.size(); ++i)
    if (sustained(trials[i]) && trials[i].offered > trials[best].offered) best = i;
  return best;
}

}  // namespace sluice::pktgen
