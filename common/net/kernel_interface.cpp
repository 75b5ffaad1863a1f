#include "common/net/kernel_interface.hpp"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sluice::net {
namespace {

// False: there is no such interface, or it knows no answer.
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

bool takes_off_tags(const std::string& interface) {
  ethtool_value flags{.cmd = ETHTOOL_GFLAGS, .data = 0};
  ifreq request{};
  request.ifr_data = reinterpret_cast<char*>(&flags);
  return ask(interface, SIOCETHTOOL, request) && (flags.data & ETH_FLAG_RXVLAN) != 0;
}

}  // namespace sluice::net
