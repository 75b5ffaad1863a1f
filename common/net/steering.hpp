// Rules in a device, by DPDK's rte_flow, that bring datagrams to the queue of the lane whose UDP
// port they are for. Without them the device spreads frames over its queues as it likes: by their
// source ports (rss.hpp), or lanes hand them over to each other (hand_over.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct rte_flow;

namespace sluice::net {

class Steering {
 public:
  /// Gives the started device `port_id`, whose frames are of `vlan`, a rule for each queue:
  /// datagrams to UDP port `first_udp_port` + q come to queue q. It takes all rules or keeps none.
  Steering(std::uint16_t port_id, std::uint16_t vlan, std::uint16_t first_udp_port,
           std::uint16_t queues);
  /// Takes the rules out of the device.
  ~Steering();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  /// Why the device took no rules; empty: it took them.
  const std::string& refusal() const { return refusal_; }

 private:
  void destroy_rules();

  std::uint16_t port_id_;
  std::vector<rte_flow*> rules_;
  std::string refusal_;
};

}  // namespace sluice::net
