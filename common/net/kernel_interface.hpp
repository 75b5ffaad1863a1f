// What the kernel says of its network interfaces: those of this process's network namespace, where
// /sys may show another one's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::net {

/// Nothing if there is no such interface.
std::optional<int> interface_mtu(const std::string& interface);

/// How many queues an AF_XDP port can have, by the rules of the driver. Nothing if the kernel does
/// not say.
std::optional<unsigned> interface_queues(const std::string& interface);

/// Whether this process may open packet sockets.
bool may_open_packet_sockets();

/// Whether packet sockets are in the fanout group with that number, as far as this process may ask.
bool is_fanout_group_taken(std::uint16_t number);

/// Whether the tags of VLANs are removed from frames that it receives.
bool takes_off_tags(const std::string& interface);

}  // namespace sluice::net
