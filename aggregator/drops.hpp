// What a daemon's lanes have dropped, by reason: below the engine, and by it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "aggregator/figures.hpp"
#include "common/net/io_counters.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::aggregator {

/// Whether one of net::kIoCounterNames counts frames or datagrams that were dropped.
inline bool is_drop(std::string_view io_counter) {
  constexpr std::array<std::string_view, 22> kDrops{
      "rx_too_short",     "rx_other_mac",      "rx_other_vlan",       "rx_other_protocol",
      "rx_bad_ip_header", "rx_ip_options",     "rx_fragment",         "rx_bad_ip_checksum",
      "rx_other_ip",      "rx_bad_length",     "rx_bad_udp_checksum", "rx_bad_icmp",
      "rx_port_closed",   "rx_hand_over_full", "rx_multi_segment",    "tx_backlog_full",
      "tx_link_down",     "tx_too_long",       "tx_unknown_port",     "tx_port_removed",
      "rx_fault_lost",    "tx_fault_lost"};
  return std::find(kDrops.begin(), kDrops.end(), io_counter) != kDrops.end();
}

/// Calls f(lane, reason, count) for every lane and reason.
template <class F>
void for_each_drop(const Figures& figures, F&& f) {
  for (std::size_t i = 0; i < figures.lanes.size(); ++i) {
    const Lane::Snapshot& lane = figures.lanes[i];
    for (const auto& [name, member] : net::kIoCounterNames)
      if (is_drop(name)) f(i, name, lane.io.*member);
    for (std::size_t r = 1; r < kDropReasonCount; ++r)
      f(i, name(DropReason(r)), lane.engine.drops[DropReason(r)]);
  }
}

}  // namespace sluice::aggregator
