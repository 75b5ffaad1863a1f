#include "aggregator/report.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "common/base/version.hpp"

namespace sluice::aggregator {
namespace {

// "name 3, other 4": what has never moved is left out.
class Line {
 public:
  void operator()(std::string_view name, std::uint64_t value) {
    if (value != 0)
      text_ += (text_.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  }
  std::string take() { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

/// Of all lanes.
struct Traffic {
  std::uint64_t rx_datagrams = 0, rx_bytes = 0, tx_datagrams = 0, tx_bytes = 0;
  std::uint64_t rounds_finished = 0;
};

Traffic traffic_of(const Figures& figures) {
  Traffic sum;
  for (const Lane::Snapshot& lane : figures.lanes) {
    sum.rx_datagrams += lane.io.rx_datagrams;
    sum.rx_bytes += lane.io.rx_bytes;
    sum.tx_datagrams += lane.io.tx_datagrams;
    sum.tx_bytes += lane.io.tx_bytes;
    sum.rounds_finished += lane.engine.rounds_finished;
  }
  return sum;
}

}  // namespace

void Report::add_totals(Lines& lines, const Lane::Snapshot& lane, const std::string& prefix) {
  Line line;
  lane.engine.for_each(line);
  lines[prefix + "counters"] = line.take();
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    line(name(reason), lane.engine.drops[reason]);
  }
  lines[prefix + "packets dropped"] = line.take();
  for (const auto& [label, member] : net::kIoCounterNames) line(label, lane.io.*member);
  lines[prefix + "ports"] = line.take();
}

Report::Lines Report::totals(const Figures& now) {
  Lines lines;
  const bool several = now.lanes.size() > 1;
  for (std::size_t i = 0; i < now.lanes.size(); ++i)
    add_totals(lines, now.lanes[i], several ? "lane " + std::to_string(i) + " " : "");
  Line line;
  net::PortCounters of_ports;
  for (const PortFigures& port : now.ports) of_ports += port.counters;
  line("rx_missed", of_ports.rx_missed);
  line("rx_no_buffer", of_ports.rx_no_buffer);
  const std::string missed = line.take();
  std::string& ports = lines["ports"];
  ports += (ports.empty() || missed.empty() ? "" : ", ") + missed;
  if (now.local) {
    line("attached", now.local->attached);
    line("detached", now.local->detached);
    line("refused", now.local->refused);
    line("stale_removed", now.local->stale_removed);
    line("renewed", now.local->renewed);
    lines["local workers"] = line.take();
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
  for (auto& [what, text] : totals(now)) {
    if (!text.empty() && text != logged_[what]) logger_->info("{} so far: {}", what, text);
    logged_[what] = std::move(text);
  }
  const Traffic was = traffic_of(before_);
  const Traffic is = traffic_of(now);
  const bool traffic = is.rx_datagrams != was.rx_datagrams || is.tx_datagrams != was.tx_datagrams;
  if (traffic && now.at > before_.at) logger_->info("in the last {}", rates(before_, now));
  before_ = now;
}

void Report::tell_all(const Figures& now) {
  logger_->info("sluice at exit: version {}, build {}", version(), build_id());
  for (const auto& [what, text] : totals(now))
    if (!text.empty()) logger_->info("{} at exit: {}", what, text);
}

}  // namespace sluice::aggregator
