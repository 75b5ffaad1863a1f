// Which multicast groups a port's device accepts. By default it accepts frames to its own address
// and broadcasts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice::net {

class GroupFilter {
 public:
  /// How the device is configured.
  enum class Means : std::uint8_t {
    kNone,          ///< not at all: there are no groups, or nothing works
    kDevice,        ///< by its list of addresses
    kKernel,        ///< by the list of the kernel's interface that belongs to the device
    kAllMulticast,  ///< it accepts all groups
    kPromiscuous,   ///< it accepts everything
  };

  /// `interface` is the kernel's interface of the device; empty if there is none.
  GroupFilter(std::uint16_t port_id, std::string interface);
  /// Restores the configuration of the device.
  ~GroupFilter();
  GroupFilter(const GroupFilter&) = delete;
  GroupFilter& operator=(const GroupFilter&) = delete;

  /// Lets the device accept these groups, in host byte order, and queries about them.
  Means receive(std::span<const std::uint32_t> groups);

 private:
  Means try_to_receive(std::span<const std::uint32_t> groups);
  void withdraw(Means means);
  bool list_in_device(std::span<const std::uint32_t> groups) const;
  bool list_in_kernel(std::span<const std::uint32_t> groups);
  void close_socket();

  std::uint16_t port_id_;
  std::string interface_;
  Means means_ = Means::kNone;
  int socket_ = -1;  // its memberships are the kernel's list
};

/// For logs: "its list of addresses".
const char* name(GroupFilter::Means means);

}  // namespace sluice::net
