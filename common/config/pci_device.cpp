#include "common/config/pci_device.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <unistd.h>

#include <sluice/error.hpp>

namespace sluice::config {
namespace {

namespace fs = std::filesystem;

// The last three share the device with DPDK, all others leave it to DPDK.
constexpr std::array<std::string_view, 6> kDrivers{"vfio-pci",  "uio_pci_generic", "igb_uio",
                                                   "mlx4_core", "mlx5_core",       "mana"};

std::string address_of(const std::string& device) {
  return device.substr(0, device.find(','));
}

/// The last part of what a link points to; empty if there is none.
std::string target(const fs::path& link) {
  std::error_code ignored;
  return fs::read_symlink(link, ignored).filename();
}

bool may_open(const fs::path& file) {
  return access(file.c_str(), R_OK | W_OK) == 0;
}

void check_driver(const std::string& driver, const std::string& address) {
  if (std::ranges::find(kDrivers, driver) != kDrivers.end()) return;
  throw Error(ErrorCode::kUnavailable,
              "PCI device " + address + " is bound to " + (driver.empty() ? "no driver" : driver) +
                  ": vfio-pci expected (dpdk-devbind.py --bind=vfio-pci " + address + ")");
}

void check_privilege(const std::string& group, const std::string& address, const fs::path& root) {
  const fs::path directory = fs::path("dev") / "vfio";
  // The second where the machine has no IOMMU.
  if (may_open(root / directory / group) || may_open(root / directory / ("noiommu-" + group)))
    return;
  throw Error(ErrorCode::kUnavailable, "the privilege is missing: access to /" +
                                           (directory / group).string() +
                                           " expected, for PCI device " + address);
}

}  // namespace

bool is_pci_device(const std::string& device) {
  const std::string address = address_of(device);
  return address.size() >= 7 && address[address.size() - 2] == '.' &&
         address.find_first_not_of("0123456789abcdefABCDEF:.") == std::string::npos;
}

void check_pci_device(const std::string& device, const fs::path& root) {
  const std::string address = address_of(device);
  const bool has_domain = std::ranges::count(address, ':') == 2;
  const fs::path place =
      root / "sys" / "bus" / "pci" / "devices" / (has_domain ? address : "0000:" + address);
  if (!fs::exists(place))
    throw Error(ErrorCode::kUnavailable, "this machine has no PCI device " + address);
  const std::string driver = target(place / "driver");
  check_driver(driver, address);
  if (driver == "vfio-pci") check_privilege(target(place / "iommu_group"), address, root);
}

}  // namespace sluice::config
