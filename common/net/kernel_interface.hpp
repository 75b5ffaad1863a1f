// What the kernel says of its network interfaces: those of this process's network namespace, where
// /sys may show another one's.
#pragma once

#include <optional>
#include <string>

namespace sluice::net {

/// Empty: there is no such interface.
std::optional<int> interface_mtu(const std::string& interface);

/// How many an AF_XDP port can have, by the driver's rules. Empty: the kernel does not tell.
std::optional<unsigned> interface_queues(const std::string& interface);

/// Whether VLANs' tags are taken off the frames that it receives.
bool takes_off_tags(const std::string& interface);

}  // namespace sluice::net
