// Model of links: rate, delay, loss, duplication, reordering, replays, damage, partitions,
// congestion.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "common/base/endpoint.hpp"
#include "tests/sim/buffer.hpp"
#include "tests/sim/counting.hpp"
#include "tests/sim/events.hpp"
#include "tests/sim/random.hpp"
#include "tests/sim/scenario.hpp"

namespace sluice::sim {

// The address of a process; goes into Endpoint::ipv4.
using Address = std::uint32_t;
inline constexpr Address kStandbys = 0x100;
inline constexpr std::uint16_t kAggregatorPort = 4791;  // of lane 0
inline constexpr Address kIntruders = 0x8000;
inline constexpr Address kHostileAddress = 0x7777;  // of a host that belongs to no job
inline constexpr std::array<std::uint8_t, 6> kHostileMac{2, 0, 0, 0, 0, 0x77};

constexpr Address address_of_shard(unsigned shard, bool standby) {
  return 1 + shard + (standby ? kStandbys : 0);
}
constexpr Address address_of_rank(std::uint32_t job, unsigned rank, bool intruder) {
  return (job << 16) + rank + (intruder ? kIntruders : 0);
}

constexpr unsigned rank_at(Address worker) {
  return worker & 0xff;
}

/// A datagram as it comes out of the network.
struct Arrival {
  Endpoint from;
  Bytes bytes;
  bool damaged = false;
};

class Network {
 public:
  using Handler = std::function<void(const Arrival&)>;

  Network(Events& events, const Scenario& scenario, bool trace)
      : events_(events), scenario_(scenario), random_(derive(scenario.seed, 1)), trace_(trace) {}

  /// Sees every packet as it is sent.
  std::function<void(const Endpoint& from, const Endpoint& to, const Bytes& datagram)> on_send;
  /// Whether a story loses this packet on its way to one receiver; null: there is no story.
  std::function<bool(const Endpoint& from, const Endpoint& to, const Bytes& datagram)> loses;

  /// The external address of a lane: the address of its aggregator, with a UDP port of its own.
  /// Inside the simulation each shard has an address.
  Endpoint outside(Endpoint lane) const;
  Endpoint inside(Endpoint known) const;

  void attach(Address address, Handler handler) { handlers_[address] = std::move(handler); }
  void detach(Address address) {
    handlers_.erase(address);
    groups_.erase(address);
  }

  /// Lets this host receive what is sent to these multicast groups, from now on.
  void set_groups(Address host, std::set<Address> groups) { groups_[host] = std::move(groups); }

  /// `from` is an internal address, `to` an external one.
  void send(const Endpoint& from, const Endpoint& to, const Bytes& datagram);

  /// Sends a packet of a host on the segment, with any sender address. No fault affects it, and
  /// on_send does not see it. `damaged`: it is not what that sender has sent.
  void inject(const Endpoint& from, const Endpoint& to, const Bytes& datagram, bool damaged);

  bool faulty() const { return events_.now() < scenario_.faults_end; }
  /// Whether a pool has a buffer now, decided by chance.
  bool pool_has_one() { return !faulty() || !random_.chance(scenario_.pool_misses); }
  /// How many packets a process can send in one turn.
  std::uint64_t room_in_ring(std::uint64_t unlimited) {
    return faulty() && random_.chance(scenario_.full_rings) ? random_.below(8) : unlimited;
  }

  void add_to(Coverage& coverage) const;

 private:
  struct Counts {
    std::uint64_t packets = 0, to_groups = 0, outside_group = 0, lost = 0, duplicated = 0, late = 0,
                  ancient = 0, garbage = 0, flipped = 0, cut = 0, congested = 0, overflowed = 0;
  };

  /// `sent`: when a packet to a group has left its sender's link; that is once for all receivers.
  void send_to_one(const Endpoint& from, const Endpoint& to, const Bytes& datagram,
                   std::optional<Time> sent);
  std::vector<Endpoint> receivers(const Endpoint& to) const;
  void carry(const Endpoint& from, const Endpoint& to, Bytes datagram, Duration extra,
             std::optional<Time> sent);
  void put(const Endpoint& from, const Endpoint& to, const Bytes& datagram, Time at, bool damaged);
  void deliver(const Endpoint& to, const Arrival& arrival);
  Bytes damaged(const Bytes& datagram);
  Bytes with_flipped_bits(const Bytes& datagram);
  double share_of_late(Address to) const;
  const Cut* cut_of(Address from, Address to, bool to_group = false) const;
  std::optional<Time> leaves_link(bool up, Address host, std::size_t size);
  bool departs(const Endpoint& from, const Endpoint& to, std::size_t size, Time& at);

  Events& events_;
  const Scenario& scenario_;
  Random random_;
  bool trace_;
  std::unordered_map<Address, Handler> handlers_;
  std::map<Address, std::set<Address>> groups_;         // by host
  std::unordered_map<std::uint64_t, Time> busy_until_;  // by path, or by link
  Counts counts_;
};

}  // namespace sluice::sim
