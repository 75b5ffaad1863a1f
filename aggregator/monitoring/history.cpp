#include "aggregator/monitoring/history.hpp"

#include <chrono>

#include "common/net/clock.hpp"

namespace sluice::aggregator {
namespace {

/// How much a counter has grown. It begins at 0 again if its job has ended and formed again.
double growth(std::uint64_t from, std::uint64_t to) {
  return static_cast<double>(to >= from ? to - from : to);
}

/// The bytes of blocks from which densities are computed.
struct BlockBytes {
  double contributed = 0, summed = 0, dense = 0, dense_of_all_ranks = 0;

  void add(const JobCounters& from, const JobCounters& to, std::uint16_t ranks) {
    const auto grew = [&](std::uint64_t JobCounters::*member) {
      return growth(from.*member, to.*member);
    };
    contributed += grew(&JobCounters::bytes_contributed);
    summed += grew(&JobCounters::bytes_summed);
    dense += grew(&JobCounters::bytes_dense);
    dense_of_all_ranks += ranks * grew(&JobCounters::bytes_dense);
  }

  Densities densities() const {
    if (dense == 0) return {};
    return {contributed / dense_of_all_ranks, summed / dense};
  }
};

void add_traffic(Rates& rates, const LaneFigures& lane, double sign) {
  const auto add = [&](double& to, std::uint64_t value) {
    to += sign * static_cast<double>(value);
  };
  add(rates.received_datagrams, lane.io.rx_datagrams);
  add(rates.received_bytes, lane.io.rx_bytes);
  add(rates.sent_datagrams, lane.io.tx_datagrams);
  add(rates.sent_bytes, lane.io.tx_bytes);
  add(rates.rounds, lane.engine.rounds_finished);
  rates.busy += sign * std::chrono::duration<double>(lane.busy).count();
}

void add_jobs(Rates& rates, const Figures& before, const Figures& now, double seconds) {
  BlockBytes of_all;
  const auto jobs_before = jobs_of(before);
  for (const auto& [id, job] : jobs_of(now)) {
    const auto known = jobs_before.find(id);
    const JobCounters from = known == jobs_before.end() ? JobCounters{} : known->second.counters;
    const auto per_second = [&, &to = job.counters](std::uint64_t JobCounters::*member) {
      return growth(from.*member, to.*member) / seconds;
    };
    BlockBytes blocks;
    blocks.add(from, job.counters, job.session.ranks);
    of_all.add(from, job.counters, job.session.ranks);
    rates.jobs[id] = {per_second(&JobCounters::received_bytes),
                      per_second(&JobCounters::sent_bytes), per_second(&JobCounters::rounds),
                      blocks.densities()};
  }
  rates.densities = of_all.densities();
}

Rates rates_between(const Figures& before, const Figures& now) {
  Rates rates;
  rates.at = now.at;
  const double seconds = std::chrono::duration<double>(now.at - before.at).count();
  for (const LaneFigures& lane : now.lanes) add_traffic(rates, lane, 1);
  for (const LaneFigures& lane : before.lanes) add_traffic(rates, lane, -1);
  if (rates.received_datagrams > 0)
    rates.cycles_per_packet = rates.busy * net::cycles_per_second() / rates.received_datagrams;
  for (double* rate : {&rates.received_datagrams, &rates.received_bytes, &rates.sent_datagrams,
                       &rates.sent_bytes, &rates.rounds, &rates.busy})
    *rate /= seconds;
  rates.busy /= static_cast<double>(now.lanes.size());
  add_jobs(rates, before, now, seconds);
  return rates;
}

}  // namespace

void History::add(const Figures& now) {
  if (before_ && now.at > before_->at && !now.lanes.empty()) {
    if (!rates_.empty()) rates_.back().jobs.clear();
    rates_.push_back(rates_between(*before_, now));
    if (rates_.size() > kSamples) rates_.pop_front();
  }
  before_ = now;
}

}  // namespace sluice::aggregator
