// Which multicast groups a port's device lets in: by default it takes what is for itself and
// broadcasts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice::net {

class GroupFilter {
 public:
  /// How the device was told.
  enum class Means : std::uint8_t {
    kNone,          ///< not at all: there are no groups, or nothing works
    kDevice,        ///< its list of addresses
    kKernel,        ///< the list of the kernel's interface that the device is
    kAllMulticast,  ///< it takes all groups
    kPromiscuous,   ///< it takes everything
  };

  /// `interface`: the kernel's that the device is; empty: it is none.
  GroupFilter(std::uint16_t port_id, std::string interface);
  /// The device is as it was before.
  ~GroupFilter();
  GroupFilter(const GroupFilter&) = delete;
  GroupFilter& operator=(const GroupFilter&) = delete;

  /// From now on the device lets in these groups, in host byte order, and queries about them.
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
  int socket_ = -1;  // whose memberships are the kernel's list
};

/// For logs: "its list of addresses".
const char* name(GroupFilter::Means means);

}  // namespace sluice::net
