// Rules in a device (DPDK's rte_flow) that bring datagrams to the queue of the lane whose UDP port
// they are for. Without rules the device spreads frames over its queues in its own way: then source
// ports are chosen (rss.hpp), or lanes pass frames to each other (hand_over.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct rte_flow;

namespace sluice::net {

class Steering {
 public:
  /// Adds a rule for each queue to the started device `port_id`, whose frames are of `vlan`:
  /// datagrams to UDP port `first_udp_port` + q come to queue q. If the device does not accept all
  /// rules, none stays.
  Steering(std::uint16_t port_id, std::uint16_t vlan, std::uint16_t first_udp_port,
           std::uint16_t queues);
  /// Removes the rules from the device.
  ~Steering();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  /// Why the device did not accept the rules; empty if it did.
  const std::string& refusal() const { return refusal_; }

 private:
  void destroy_rules();

  std::uint16_t port_id_;
  std::vector<rte_flow*> rules_;
  std::string refusal_;
};

}  // namespace sluice::net
