// Network ports that are PCI devices: which they are, and whether this process may have one.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::config {

/// "0000:3b:00.0", with or without the domain, and with arguments after a comma or without.
bool is_pci_device(const std::string& device);

/// Throws kUnavailable, and says what to do, unless the machine has the device, it is bound to a
/// driver that DPDK takes it from, and this user may open it. `root`: of the machine's files.
void check_pci_device(const std::string& device, const std::filesystem::path& root = "/");

}  // namespace sluice::config
