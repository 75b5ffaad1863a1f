#include "aggregator/report.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

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

}  // namespace

Report::Lines Report::totals(const Figures& now) {
  Lines lines;
  Line line;
  now.lane.engine.for_each(line);
  lines["counters"] = line.take();
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    line(name(reason), now.lane.engine.drops[reason]);
  }
  lines["packets dropped"] = line.take();
  for (const auto& [label, member] : net::kIoCounterNames) line(label, now.lane.io.*member);
  line("rx_missed", now.drops.rx_missed);
  line("rx_no_buffer", now.drops.rx_no_buffer);
  lines["ports"] = line.take();
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
  const net::IoCounters& was = before.lane.io;
  const net::IoCounters& is = now.lane.io;
  constexpr double kMega = 1e6;
  return fmt::format(
      "{:.1f} s: received {:.0f} packets/s, {:.2f} MB/s; sent {:.0f} packets/s, {:.2f} MB/s; "
      "finished {:.0f} rounds/s",
      seconds, per_second(was.rx_datagrams, is.rx_datagrams),
      per_second(was.rx_bytes, is.rx_bytes) / kMega, per_second(was.tx_datagrams, is.tx_datagrams),
      per_second(was.tx_bytes, is.tx_bytes) / kMega,
      per_second(before.lane.engine.rounds_finished, now.lane.engine.rounds_finished));
}

void Report::tell_progress(const Figures& now) {
  for (auto& [what, text] : totals(now)) {
    if (!text.empty() && text != logged_[what]) logger_->info("{} so far: {}", what, text);
    logged_[what] = std::move(text);
  }
  const bool traffic = now.lane.io.rx_datagrams != before_.lane.io.rx_datagrams ||
                       now.lane.io.tx_datagrams != before_.lane.io.tx_datagrams;
  if (traffic && now.at > before_.at) logger_->info("in the last {}", rates(before_, now));
  before_ = now;
}

void Report::tell_all(const Figures& now) {
  for (const auto& [what, text] : totals(now))
    if (!text.empty()) logger_->info("{} at exit: {}", what, text);
}

}  // namespace sluice::aggregator
