#include "tests/sim/source_port_watch.hpp"

#include "common/base/source_ports.hpp"
#include "tests/sim/bug.hpp"

namespace sluice::sim {

std::pair<Address, unsigned> SourcePortWatch::lane_at(Address shard) const {
  const unsigned number = (shard & ~kStandbys) - 1;
  const unsigned lane = number / scenario_.aggregators();
  return {shard - lane * scenario_.aggregators(), lane};
}

bool SourcePortWatch::is_faultless() const {
  return scenario_.theme == Theme::kFullLinks || scenario_.theme == Theme::kIncast ||
         scenario_.theme == Theme::kSharedLinks || scenario_.theme == Theme::kNoMulticast;
}

void SourcePortWatch::on_challenge(const Endpoint& from, const Endpoint& to,
                                   const wire::Challenge& challenge) {
  const Address process = lane_at(from.ipv4).first;
  for (std::size_t lane = 0; lane < limits::kMaxLanes; ++lane) {
    const std::uint16_t port = challenge.source_ports[lane];
    if (port == 0) continue;
    auto& ports = told_[{process, to.ipv4}].ports[lane];
    if (!ports.insert(port).second) continue;
    ++coverage_[ports.size() == 1 ? "source ports.told" : "source ports.told another"];
  }
}

void SourcePortWatch::on_send(const Endpoint& from, const Endpoint& to, const Packet& packet) {
  using wire::Kind;
  if (packet.kind() == Kind::kChallenge)
    return on_challenge(from, to, packet.as<wire::Challenge>());
  if (!wire::is_upstream(packet.kind()) || packet.kind() == Kind::kHello) return;
  const auto [process, lane] = lane_at(to.ipv4);
  Told& told = told_[{process, from.ipv4}];
  const std::set<std::uint16_t>& ports = told.ports[lane];
  const bool is_told = ports.contains(from.udp_port);
  require(is_told || from.udp_port == kWorkerUdpPort, "a rank sends from a port of nobody");
  require(is_told || ports.empty() || !is_faultless(),
          "a rank does not send from where it was told");
  if (packet.kind() == Kind::kJoin) {
    told.joined_from[lane].insert(from.udp_port);
    if (!ports.empty()) ++coverage_[is_told ? "source ports.used" : "source ports.not used"];
  } else if (packet.kind() != Kind::kLeave) {  // a LEAVE is repeated while the rank joins again
    require(told.joined_from[lane].contains(from.udp_port),
            "a rank sends from a port from which it has not joined");
  }
}

}  // namespace sluice::sim
