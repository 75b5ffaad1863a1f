#include "common/net/group_filter.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <linux/if_packet.h>
#include <net/if.h>
#include <rte_ethdev.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/multicast_address.hpp"
#include "common/net/igmp.hpp"

namespace sluice::net {
namespace {

std::vector<rte_ether_addr> addresses_of(std::span<const std::uint32_t> groups) {
  std::vector<rte_ether_addr> addresses;
  const auto add = [&](std::uint32_t group) {
    const auto mac = multicast_mac(group);
    std::ranges::copy(mac, addresses.emplace_back().addr_bytes);
  };
  add(kAllHosts);  // general queries
  for (const std::uint32_t group : groups) add(group);
  return addresses;
}

}  // namespace

GroupFilter::GroupFilter(std::uint16_t port_id, std::string interface)
    : port_id_(port_id), interface_(std::move(interface)) {}

GroupFilter::~GroupFilter() {
  receive({});
}

GroupFilter::Means GroupFilter::receive(std::span<const std::uint32_t> groups) {
  const Means before = std::exchange(means_, try_to_receive(groups));
  if (before != means_) withdraw(before);
  return means_;
}

GroupFilter::Means GroupFilter::try_to_receive(std::span<const std::uint32_t> groups) {
  if (groups.empty()) return Means::kNone;
  if (list_in_device(groups)) return Means::kDevice;
  if (list_in_kernel(groups)) return Means::kKernel;
  if (rte_eth_allmulticast_enable(port_id_) == 0) return Means::kAllMulticast;
  if (rte_eth_promiscuous_enable(port_id_) == 0) return Means::kPromiscuous;
  return Means::kNone;
}

void GroupFilter::withdraw(Means means) {
  switch (means) {
    case Means::kNone:
      break;
    case Means::kDevice:
      rte_eth_dev_set_mc_addr_list(port_id_, nullptr, 0);
      break;
    case Means::kKernel:
      close_socket();
      break;
    case Means::kAllMulticast:
      rte_eth_allmulticast_disable(port_id_);
      break;
    case Means::kPromiscuous:
      rte_eth_promiscuous_disable(port_id_);
      break;
  }
}

bool GroupFilter::list_in_device(std::span<const std::uint32_t> groups) const {
  std::vector<rte_ether_addr> addresses = addresses_of(groups);
  return rte_eth_dev_set_mc_addr_list(port_id_, addresses.data(),
                                      static_cast<std::uint32_t>(addresses.size())) == 0;
}

/// Uses a packet socket that receives nothing. If the kernel joined the groups, it would also
/// report them, from another address. The new socket's memberships begin before those of the old
/// one end.
bool GroupFilter::list_in_kernel(std::span<const std::uint32_t> groups) {
  if (interface_.empty()) return false;
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  const auto index = static_cast<int>(if_nametoindex(interface_.c_str()));
  const auto add = [&](const rte_ether_addr& address) {
    packet_mreq request{};
    request.mr_ifindex = index;
    request.mr_type = PACKET_MR_MULTICAST;
    request.mr_alen = sizeof address.addr_bytes;
    std::ranges::copy(address.addr_bytes, request.mr_address);
    return setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, sizeof request) == 0;
  };
  if (fd < 0 || !std::ranges::all_of(addresses_of(groups), add)) {
    if (fd >= 0) close(fd);
    return false;
  }
  close_socket();
  socket_ = fd;
  return true;
}

void GroupFilter::close_socket() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

const char* name(GroupFilter::Means means) {
  static constexpr std::array<const char*, 5> kNames{"nothing", "its list of addresses",
                                                     "its kernel interface's list of addresses",
                                                     "reception of all groups", "promiscuous mode"};
  return kNames[static_cast<std::size_t>(means)];
}

}  // namespace sluice::net
