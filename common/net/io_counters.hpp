// Everything that can happen to a frame, counted by name.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace sluice::net {

/// Written by the one thread that owns the DatagramIo; others take copies through that thread.
struct IoCounters {
  std::uint64_t rx_frames = 0;           ///< everything the ports gave us
  std::uint64_t rx_datagrams = 0;        ///< handed to the handler
  std::uint64_t rx_bytes = 0;            ///< payload bytes of those
  std::uint64_t rx_group_datagrams = 0;  ///< of those, what came to a multicast group
  std::uint64_t rx_too_short = 0;
  std::uint64_t rx_other_mac = 0;
  std::uint64_t rx_other_vlan = 0;  ///< tagged for another VLAN, or untagged where one is set
  std::uint64_t rx_other_protocol = 0;
  std::uint64_t rx_bad_ip_header = 0;
  std::uint64_t rx_ip_options = 0;
  std::uint64_t rx_fragment = 0;
  std::uint64_t rx_bad_ip_checksum = 0;
  std::uint64_t rx_other_ip = 0;
  std::uint64_t rx_bad_length = 0;
  std::uint64_t rx_bad_udp_checksum = 0;
  std::uint64_t rx_bad_icmp = 0;
  std::uint64_t rx_port_closed = 0;     ///< nobody listens on that UDP port
  std::uint64_t rx_handed_over = 0;     ///< to the lane that listens there: the device steers badly
  std::uint64_t rx_hand_over_full = 0;  ///< dropped: that lane did not take what others gave it
  std::uint64_t rx_multi_segment = 0;   ///< longer than a buffer
  std::uint64_t tx_datagrams = 0;       ///< taken by send()
  std::uint64_t tx_bytes = 0;           ///< payload bytes of those
  std::uint64_t tx_frames = 0;          ///< taken by the ports
  std::uint64_t tx_chained = 0;         ///< shared payloads sent behind a header of their own
  std::uint64_t tx_linearised = 0;      ///< shared payloads copied behind their header
  std::uint64_t tx_partial_bursts = 0;  ///< the port took less than was queued
  std::uint64_t tx_backlog_full = 0;    ///< dropped: the port takes nothing for too long
  std::uint64_t tx_link_down = 0;       ///< dropped: nobody at the other end of the link
  std::uint64_t tx_too_long = 0;        ///< dropped: beyond the port's MTU
  std::uint64_t tx_unknown_port = 0;    ///< dropped: no such port (any more)
  std::uint64_t tx_port_removed = 0;    ///< dropped: still queued when the port went
  std::uint64_t pool_empty = 0;         ///< no buffer for a payload, a header or a copy
  std::uint64_t arp_requests_sent = 0;
  std::uint64_t arp_replies_sent = 0;
  std::uint64_t arp_learned = 0;  ///< a neighbour's address that was asked for, new or changed
  std::uint64_t arp_ignored = 0;  ///< malformed, or not about us or anyone we know
  std::uint64_t arp_table_full = 0;
  std::uint64_t echoes_answered = 0;     ///< pings
  std::uint64_t igmp_queries = 0;        ///< about groups of ours; each will be answered
  std::uint64_t igmp_reports_sent = 0;   ///< of joining and leaving groups, and answers
  std::uint64_t igmp_reports_heard = 0;  ///< another host's, instead of an answer of ours
  std::uint64_t igmp_ignored = 0;        ///< malformed, or not about a group of ours
  // Put in on purpose, by a FaultInjector.
  std::uint64_t rx_fault_lost = 0;
  std::uint64_t rx_fault_duplicated = 0;
  std::uint64_t rx_fault_reordered = 0;
  std::uint64_t rx_fault_flipped = 0;
  std::uint64_t tx_fault_lost = 0;
  std::uint64_t tx_fault_duplicated = 0;
  std::uint64_t tx_fault_reordered = 0;
  std::uint64_t tx_fault_flipped = 0;
};

/// For printing and export: every counter once.
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

/// Those that count frames or datagrams that were dropped. What no buffer was found for counts as
/// pool_empty alone.
inline constexpr std::array<std::string_view, 22> kIoDropNames{
    "rx_too_short",     "rx_other_mac",      "rx_other_vlan",       "rx_other_protocol",
    "rx_bad_ip_header", "rx_ip_options",     "rx_fragment",         "rx_bad_ip_checksum",
    "rx_other_ip",      "rx_bad_length",     "rx_bad_udp_checksum", "rx_bad_icmp",
    "rx_port_closed",   "rx_hand_over_full", "rx_multi_segment",    "tx_backlog_full",
    "tx_link_down",     "tx_too_long",       "tx_unknown_port",     "tx_port_removed",
    "rx_fault_lost",    "tx_fault_lost"};

/// Whether the counter of this name is one of them.
constexpr bool is_drop(std::string_view io_counter) {
  return std::find(kIoDropNames.begin(), kIoDropNames.end(), io_counter) != kIoDropNames.end();
}
static_assert(std::all_of(kIoDropNames.begin(), kIoDropNames.end(), [](std::string_view drop) {
  return std::any_of(kIoCounterNames.begin(), kIoCounterNames.end(),
                     [drop](const auto& counter) { return counter.first == drop; });
}));

}  // namespace sluice::net
