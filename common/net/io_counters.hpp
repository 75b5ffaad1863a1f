// A counter for everything that can happen to a frame.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace sluice::net {

/// Written only by the thread that owns the DatagramIo; other threads get copies through it.
struct IoCounters {
  std::uint64_t rx_frames = 0;           ///< received from the ports
  std::uint64_t rx_datagrams = 0;        ///< passed to the handler
  std::uint64_t rx_bytes = 0;            ///< payload bytes of rx_datagrams
  std::uint64_t rx_group_datagrams = 0;  ///< those of rx_datagrams that came to a multicast group
  std::uint64_t rx_too_short = 0;
  std::uint64_t rx_other_mac = 0;
  /// With the tag of another VLAN, or without one if a VLAN is set.
  std::uint64_t rx_other_vlan = 0;
  std::uint64_t rx_other_protocol = 0;
  std::uint64_t rx_bad_ip_header = 0;
  std::uint64_t rx_ip_options = 0;
  std::uint64_t rx_fragment = 0;
  std::uint64_t rx_bad_ip_checksum = 0;
  std::uint64_t rx_other_ip = 0;
  std::uint64_t rx_bad_length = 0;
  std::uint64_t rx_bad_udp_checksum = 0;
  std::uint64_t rx_bad_icmp = 0;
  std::uint64_t rx_port_closed = 0;  ///< nobody listens on that UDP port
  /// To the lane that listens there, as the device does not steer well.
  std::uint64_t rx_handed_over = 0;
  std::uint64_t rx_hand_over_full = 0;  ///< dropped: that lane did not take frames fast enough
  std::uint64_t rx_multi_segment = 0;   ///< longer than a buffer
  std::uint64_t tx_datagrams = 0;       ///< accepted by send()
  std::uint64_t tx_bytes = 0;           ///< payload bytes of tx_datagrams
  std::uint64_t tx_frames = 0;          ///< accepted by the ports
  std::uint64_t tx_chained = 0;         ///< shared payloads sent behind a separate header
  std::uint64_t tx_linearised = 0;      ///< shared payloads copied behind their header
  std::uint64_t tx_partial_bursts = 0;  ///< the port accepted less than was queued
  std::uint64_t tx_backlog_full = 0;    ///< dropped: the port accepts nothing for too long
  std::uint64_t tx_link_down = 0;       ///< dropped: there is nobody at the other end of the link
  std::uint64_t tx_too_long = 0;        ///< dropped: longer than the port's MTU
  std::uint64_t tx_unknown_port = 0;    ///< dropped: no such port (any more)
  std::uint64_t tx_port_removed = 0;    ///< dropped: still queued when the port was removed
  std::uint64_t pool_empty = 0;         ///< no buffer for a payload, a header or a copy
  std::uint64_t arp_requests_sent = 0;
  std::uint64_t arp_replies_sent = 0;
  std::uint64_t arp_learned = 0;  ///< a new or changed address of a neighbour that was asked for
  std::uint64_t arp_ignored = 0;  ///< malformed, or not about us or a known neighbour
  std::uint64_t arp_table_full = 0;
  std::uint64_t echoes_answered = 0;     ///< pings
  std::uint64_t igmp_queries = 0;        ///< about our groups; each is answered
  std::uint64_t igmp_reports_sent = 0;   ///< of joining and leaving groups, and answers
  std::uint64_t igmp_reports_heard = 0;  ///< of another host, in place of our answer
  std::uint64_t igmp_ignored = 0;        ///< malformed, or not about our groups
  // Injected by a FaultInjector.
  std::uint64_t rx_fault_lost = 0;
  std::uint64_t rx_fault_duplicated = 0;
  std::uint64_t rx_fault_reordered = 0;
  std::uint64_t rx_fault_flipped = 0;
  std::uint64_t tx_fault_lost = 0;
  std::uint64_t tx_fault_duplicated = 0;
  std::uint64_t tx_fault_reordered = 0;
  std::uint64_t tx_fault_flipped = 0;
};

/// Every counter once, with its name, for logs and metrics.
inline constexpr std::array<std::pair<std::string_view, std::uint64_t IoCounters::*>, 50>
    kIoCounterNames{{
        {"rx_frames", &IoCounters::rx_frames},
        {"rx_datagrams", &IoCounters::rx_datagrams},
        {"rx_bytes", &IoCounters::rx_bytes},
        {"rx_group_datagrams", &IoCounters::rx_group_datagrams},
        {"rx_too_short", &IoCounters::rx_too_short},
        {"rx_other_mac", &IoCounters::rx_other_mac},
        {"rx_other_vlan", &IoCounters::rx_other_vlan},
        {"rx_other_protocol", &IoCounters::rx_other_protocol},
        {"rx_bad_ip_header", &IoCounters::rx_bad_ip_header},
        {"rx_ip_options", &IoCounters::rx_ip_options},
        {"rx_fragment", &IoCounters::rx_fragment},
        {"rx_bad_ip_checksum", &IoCounters::rx_bad_ip_checksum},
        {"rx_other_ip", &IoCounters::rx_other_ip},
        {"rx_bad_length", &IoCounters::rx_bad_length},
        {"rx_bad_udp_checksum", &IoCounters::rx_bad_udp_checksum},
        {"rx_bad_icmp", &IoCounters::rx_bad_icmp},
        {"rx_port_closed", &IoCounters::rx_port_closed},
        {"rx_handed_over", &IoCounters::rx_handed_over},
        {"rx_hand_over_full", &IoCounters::rx_hand_over_full},
        {"rx_multi_segment", &IoCounters::rx_multi_segment},
        {"tx_datagrams", &IoCounters::tx_datagrams},
        {"tx_bytes", &IoCounters::tx_bytes},
        {"tx_frames", &IoCounters::tx_frames},
        {"tx_chained", &IoCounters::tx_chained},
        {"tx_linearised", &IoCounters::tx_linearised},
        {"tx_partial_bursts", &IoCounters::tx_partial_bursts},
        {"tx_backlog_full", &IoCounters::tx_backlog_full},
        {"tx_link_down", &IoCounters::tx_link_down},
        {"tx_too_long", &IoCounters::tx_too_long},
        {"tx_unknown_port", &IoCounters::tx_unknown_port},
        {"tx_port_removed", &IoCounters::tx_port_removed},
        {"pool_empty", &IoCounters::pool_empty},
        {"arp_requests_sent", &IoCounters::arp_requests_sent},
        {"arp_replies_sent", &IoCounters::arp_replies_sent},
        {"arp_learned", &IoCounters::arp_learned},
        {"arp_ignored", &IoCounters::arp_ignored},
        {"arp_table_full", &IoCounters::arp_table_full},
        {"echoes_answered", &IoCounters::echoes_answered},
        {"igmp_queries", &IoCounters::igmp_queries},
        {"igmp_reports_sent", &IoCounters::igmp_reports_sent},
        {"igmp_reports_heard", &IoCounters::igmp_reports_heard},
        {"igmp_ignored", &IoCounters::igmp_ignored},
        {"rx_fault_lost", &IoCounters::rx_fault_lost},
        {"rx_fault_duplicated", &IoCounters::rx_fault_duplicated},
        {"rx_fault_reordered", &IoCounters::rx_fault_reordered},
        {"rx_fault_flipped", &IoCounters::rx_fault_flipped},
        {"tx_fault_lost", &IoCounters::tx_fault_lost},
        {"tx_fault_duplicated", &IoCounters::tx_fault_duplicated},
        {"tx_fault_reordered", &IoCounters::tx_fault_reordered},
        {"tx_fault_flipped", &IoCounters::tx_fault_flipped},
    }};
static_assert(sizeof(IoCounters) == kIoCounterNames.size() * sizeof(std::uint64_t));

/// Counters of dropped frames or datagrams. A frame for which there was no buffer counts only as
/// pool_empty.
inline constexpr std::array<std::string_view, 22> kIoDropNames{
    "rx_too_short",     "rx_other_mac",      "rx_other_vlan",       "rx_other_protocol",
    "rx_bad_ip_header", "rx_ip_options",     "rx_fragment",         "rx_bad_ip_checksum",
    "rx_other_ip",      "rx_bad_length",     "rx_bad_udp_checksum", "rx_bad_icmp",
    "rx_port_closed",   "rx_hand_over_full", "rx_multi_segment",    "tx_backlog_full",
    "tx_link_down",     "tx_too_long",       "tx_unknown_port",     "tx_port_removed",
    "rx_fault_lost",    "tx_fault_lost"};

/// Whether the counter with this name is in kIoDropNames.
constexpr bool is_drop(std::string_view io_counter) {
  return std::find(kIoDropNames.begin(), kIoDropNames.end(), io_counter) != kIoDropNames.end();
}
static_assert(std::all_of(kIoDropNames.begin(), kIoDropNames.end(), [](std::string_view drop) {
  return std::any_of(kIoCounterNames.begin(), kIoCounterNames.end(),
                     [drop](const auto& counter) { return counter.first == drop; });
}));

}  // namespace sluice::net
