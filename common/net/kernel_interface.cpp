#include "common/net/kernel_interface.hpp"

#include <cerrno>

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sluice::net {
namespace {

// Returns false if there is no such interface, or if it does not know the answer.
bool ask(const std::string& interface, unsigned long question, ifreq& request) {
  if (interface.size() >= sizeof request.ifr_name) return false;
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool answered = ioctl(fd, question, &request) == 0;
  ::close(fd);
  return answered;
}

}  // namespace

std::optional<int> interface_mtu(const std::string& interface) {
  ifreq request{};
  return ask(interface, SIOCGIFMTU, request) ? std::optional(request.ifr_mtu) : std::nullopt;
}

std::optional<unsigned> interface_queues(const std::string& interface) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request{};
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (!ask(interface, SIOCETHTOOL, request)) return std::nullopt;
  return channels.max_combined == 0 ? 1 : channels.combined_count;
}

bool may_open_packet_sockets() {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  ::close(fd);
  return true;
}

// A socket of another kind cannot join the group. (This socket gets no packets that matter.)
bool is_fanout_group_taken(std::uint16_t number) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_LOOP));
  if (fd < 0) return false;
  const int group = number | PACKET_FANOUT_LB << 16;
  const bool is_taken =
      setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &group, sizeof group) != 0 && errno == EINVAL;
  ::close(fd);
  return is_taken;
}

bool takes_off_tags(const std::string& interface) {
  ethtool_value flags{.cmd = ETHTOOL_GFLAGS, .data = 0};
  ifreq request{};
  request.ifr_data = reinterpret_cast<char*>(&flags);
  return ask(interface, SIOCETHTOOL, request) && (flags.data & ETH_FLAG_RXVLAN) != 0;
}

}  // namespace sluice::net
