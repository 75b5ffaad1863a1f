#include "common/net/steering.hpp"

#include <array>

#include <rte_byteorder.h>
#include <rte_errno.h>
#include <rte_flow.h>

#include "common/net/framing.hpp"

namespace sluice::net {
namespace {

rte_flow_item item(rte_flow_item_type type, const void* spec = nullptr,
                   const void* mask = nullptr) {
  return {.type = type, .spec = spec, .last = nullptr, .mask = mask};
}

/// Calls `use` with the rule that brings datagrams for a UDP port to a queue.
template <class Use>
auto with_rule(std::uint16_t vlan, std::uint16_t udp_port, std::uint16_t queue, const Use& use) {
  rte_flow_attr attributes{};
  attributes.ingress = 1;
  rte_flow_item_vlan tag{};
  rte_flow_item_vlan tag_mask{};
  tag.hdr.vlan_tci = rte_cpu_to_be_16(vlan);
  tag_mask.hdr.vlan_tci = rte_cpu_to_be_16(vlan_of_tag(0xffff));
  rte_flow_item_udp udp{};
  rte_flow_item_udp udp_mask{};
  udp.hdr.dst_port = rte_cpu_to_be_16(udp_port);
  udp_mask.hdr.dst_port = 0xffff;
  std::vector<rte_flow_item> pattern{item(RTE_FLOW_ITEM_TYPE_ETH)};
  if (vlan != kNoVlan) pattern.push_back(item(RTE_FLOW_ITEM_TYPE_VLAN, &tag, &tag_mask));
  pattern.push_back(item(RTE_FLOW_ITEM_TYPE_IPV4));
  pattern.push_back(item(RTE_FLOW_ITEM_TYPE_UDP, &udp, &udp_mask));
  pattern.push_back(item(RTE_FLOW_ITEM_TYPE_END));
  const rte_flow_action_queue to{queue};
  const std::array<rte_flow_action, 2> actions{
      {{RTE_FLOW_ACTION_TYPE_QUEUE, &to}, {RTE_FLOW_ACTION_TYPE_END, nullptr}}};
  return use(&attributes, pattern.data(), actions.data());
}

std::string explain(const rte_flow_error& error) {
  return error.message != nullptr ? error.message : rte_strerror(rte_errno);
}

}  // namespace

Steering::Steering(std::uint16_t port_id, std::uint16_t vlan, std::uint16_t first_udp_port,
                   std::uint16_t queues)
    : port_id_(port_id) {
  rte_flow_error error{};
  const auto is_valid = [&](const auto*... rule) {
    return rte_flow_validate(port_id, rule..., &error) == 0;
  };
  const auto create = [&](const auto*... rule) {
    rte_flow* const created = rte_flow_create(port_id, rule..., &error);
    if (created != nullptr) rules_.push_back(created);
    return created != nullptr;
  };
  const auto all_rules = [&](const auto& use) {
    for (std::uint16_t queue = 0; queue < queues; ++queue)
      if (!with_rule(vlan, static_cast<std::uint16_t>(first_udp_port + queue), queue, use))
        return false;
    return true;
  };
  if (all_rules(is_valid) && all_rules(create)) return;
  refusal_ = explain(error);
  destroy_rules();
}

Steering::~Steering() {
  destroy_rules();
}

void Steering::destroy_rules() {
  for (rte_flow* const rule : rules_) rte_flow_destroy(port_id_, rule, nullptr);
  rules_.clear();
}

}  // namespace sluice::net
