#include "aggregator/monitoring/report.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "common/base/version.hpp"

namespace sluice::aggregator {
namespace {

/// The traffic of all lanes.
struct Traffic {
  std::uint64_t rx_datagrams = 0, rx_bytes = 0, tx_datagrams = 0, tx_bytes = 0;
  std::uint64_t rounds_finished = 0;
};

Traffic traffic_of(const Figures& figures) {
  Traffic sum;
  for (const LaneFigures& lane : figures.lanes) {
    sum.rx_datagrams += lane.io.rx_datagrams;
    sum.rx_bytes += lane.io.rx_bytes;
    sum.tx_datagrams += lane.io.tx_datagrams;
    sum.tx_bytes += lane.io.tx_bytes;
    sum.rounds_finished += lane.engine.rounds_finished;
  }
  return sum;
}

}  // namespace

/// A line as "name 3, other 4", without counters that have never moved.
class Report::Line {
 public:
  explicit Line(Totals& totals) : totals_(totals) {}
  void operator()(std::string_view name, std::uint64_t value) {
    if (value == 0) return;
    std::string& text = totals_.text;
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
    totals_.fields.push_back({name, value});
  }

 private:
  Totals& totals_;
};

void Report::add_totals(Lines& lines, const Figures& now, std::size_t lane) {
  const LaneFigures& of = now.lanes[lane];
  const bool several = now.lanes.size() > 1;
  const std::string prefix = several ? "lane " + std::to_string(lane) + " " : "";
  const auto line = [&](const char* what) {
    Totals& totals = lines[prefix + what];
    if (several) totals.fields.push_back({"lane", lane});
    return Line(totals);
  };
  of.engine.for_each(line("counters"));
  Line drops = line("packets dropped");
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    drops(name(reason), of.engine.drops[reason]);
  }
  Line ports = line("ports");
  for (const auto& [label, member] : net::kIoCounterNames) ports(label, of.io.*member);
}

Report::Lines Report::totals(const Figures& now) {
  Lines lines;
  for (std::size_t lane = 0; lane < now.lanes.size(); ++lane) add_totals(lines, now, lane);
  net::PortCounters of_ports;
  for (const PortFigures& port : now.ports) of_ports += port.counters;
  Line ports(lines["ports"]);
  ports("rx_missed", of_ports.rx_missed);
  ports("rx_no_buffer", of_ports.rx_no_buffer);
  if (now.local) {
    Line local(lines["local workers"]);
    local("attached", now.local->attached);
    local("detached", now.local->detached);
    local("refused", now.local->refused);
    local("stale_removed", now.local->stale_removed);
    local("renewed", now.local->renewed);
  }
  return lines;
}

std::string Report::rates(const Figures& before, const Figures& now) {
  const double seconds = std::chrono::duration<double>(now.at - before.at).count();
  const auto per_second = [&](std::uint64_t from, std::uint64_t to) {
    return static_cast<double>(to - from) / seconds;
  };
  const Traffic was = traffic_of(before);
  const Traffic is = traffic_of(now);
  constexpr double kMega = 1e6;
  return fmt::format(
      "{:.1f} s: received {:.0f} packets/s, {:.2f} MB/s; sent {:.0f} packets/s, {:.2f} MB/s; "
      "finished {:.0f} rounds/s",
      seconds, per_second(was.rx_datagrams, is.rx_datagrams),
      per_second(was.rx_bytes, is.rx_bytes) / kMega, per_second(was.tx_datagrams, is.tx_datagrams),
      per_second(was.tx_bytes, is.tx_bytes) / kMega,
      per_second(was.rounds_finished, is.rounds_finished));
}

void Report::tell_progress(const Figures& now) {
  for (auto& [what, totals] : totals(now)) {
    if (!totals.text.empty() && totals.text != logged_[what]) tell(what, "so far", totals);
    logged_[what] = std::move(totals.text);
  }
  const Traffic was = traffic_of(before_);
  const Traffic is = traffic_of(now);
  const bool traffic = is.rx_datagrams != was.rx_datagrams || is.tx_datagrams != was.tx_datagrams;
  if (traffic && now.at > before_.at) logger_->info("in the last {}", rates(before_, now));
  before_ = now;
}

void Report::tell_all(const Figures& now) {
  logger_->info("sluice at exit: version {}, build {}", version(), build_id());
  for (const auto& [what, totals] : totals(now))
    if (!totals.text.empty()) tell(what, "at exit", totals);
}

void Report::tell(const std::string& what, const char* when, const Totals& totals) {
  LogFields fields{{"event", std::string("counters")}, {"kind", what}};
  fields.insert(fields.end(), totals.fields.begin(), totals.fields.end());
  const LogContext context(std::move(fields));
  logger_->info("{} {}: {}", what, when, totals.text);
}

}  // namespace sluice::aggregator
