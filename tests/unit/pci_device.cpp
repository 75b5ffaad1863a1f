// Which ports are PCI devices, and what must be so before DPDK can have one.
#include "common/config/pci_device.hpp"

#include "tests/unit/config_parts.hpp"

namespace sluice::config::pci_device_tests {
namespace {

const std::string kDevice = "0000:3b:00.0";

/// The part of a machine's file system that tells of one PCI device.
class Machine {
 public:
  Machine() { fs::create_directories(device()); }

  Machine& bind(const std::string& driver) {
    fs::create_symlink("../../../bus/pci/drivers/" + driver, device() / "driver");
    return *this;
  }
  Machine& put_into_group(const std::string& number) {
    fs::create_symlink("../../../kernel/iommu_groups/" + number, device() / "iommu_group");
    return *this;
  }
  Machine& make_group_file(const std::string& name) {
    fs::create_directories(root() / "dev" / "vfio");
    std::ofstream(root() / "dev" / "vfio" / name) << "\n";
    return *this;
  }

  std::string complaint(const std::string& device) const {
    try {
      check_pci_device(device, root());
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);
      return error.what();
    }
    return "";
  }

 private:
  fs::path root() const { return directory_.path(); }
  fs::path device() const { return root() / "sys" / "bus" / "pci" / "devices" / kDevice; }

  Directory directory_;
};

TEST_CASE("PCI devices are told from others by their names") {
  for (const char* device : {"0000:3b:00.0", "3b:00.0", "0000:3b:00.0,representor=[0]"})
    CHECK(is_pci_device(device));
  for (const char* device : {"", "net_af_packet0,iface=eth1", "net_ring0", "3b:00", "eth1.5"})
    CHECK_FALSE(is_pci_device(device));
}

TEST_CASE("a device that is not there is named") {
  CHECK(Machine().complaint("0000:3c:00.0") == "this machine has no PCI device 0000:3c:00.0");
}

TEST_CASE("a device must be bound to a driver that DPDK takes it from") {
  const std::string expected = ": vfio-pci expected (dpdk-devbind.py --bind=vfio-pci 0000:3b:00.0)";
  CHECK(Machine().complaint(kDevice) == "PCI device 0000:3b:00.0 is bound to no driver" + expected);
  CHECK(Machine().bind("ixgbe").complaint(kDevice) ==
        "PCI device 0000:3b:00.0 is bound to ixgbe" + expected);
  CHECK(Machine().bind("uio_pci_generic").complaint(kDevice).empty());
  CHECK(Machine().bind("mlx5_core").complaint(kDevice).empty());
}

TEST_CASE("a device of vfio-pci must be this user's to open") {
  Machine machine;
  machine.bind("vfio-pci").put_into_group("12");
  CHECK(machine.complaint(kDevice) ==
        "the privilege is missing: access to /dev/vfio/12 expected, for PCI device 0000:3b:00.0");
  CHECK(machine.make_group_file("12").complaint(kDevice).empty());
  CHECK(machine.complaint("3b:00.0,arguments=1").empty());
}

TEST_CASE("without an IOMMU the file has another name") {
  Machine machine;
  machine.bind("vfio-pci").put_into_group("12").make_group_file("noiommu-12");
  CHECK(machine.complaint(kDevice).empty());
}

}  // namespace
}  // namespace sluice::config::pci_device_tests
