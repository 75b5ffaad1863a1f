// Modelled links: rate, delay, loss, duplication, reordering, replays, damage, blackouts.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "common/base/endpoint.hpp"
#include "tests/sim/buffer.hpp"
#include "tests/sim/events.hpp"
#include "tests/sim/random.hpp"
#include "tests/sim/scenario.hpp"

namespace sluice::sim {

/// Where a process is found; goes into Endpoint::ipv4.
using Address = std::uint32_t;

class Network {
 public:
  using Handler = std::function<void(const Endpoint& from, const Bytes& datagram)>;

  Network(Events& events, const Scenario& scenario, bool trace)
      : events_(events), scenario_(scenario), random_(derive(scenario.seed, 1)), trace_(trace) {}

  void attach(Address address, Handler handler) { handlers_[address] = std::move(handler); }
  void detach(Address address) { handlers_.erase(address); }
  void black_out(Address address, bool downstream, Time from, Time to) {
    blackouts_.push_back({address, downstream, from, to});
  }

  void send(const Endpoint& from, const Endpoint& to, const Bytes& datagram);
  std::uint64_t packets() const { return packets_; }
  /// Whether a pool has a buffer now, as far as chance decides.
  bool pool_has_one() {
    return events_.now() >= scenario_.faults_end || !random_.chance(scenario_.pool_misses);
  }

 private:
  struct Hole {
    Address address;
    bool downstream;
    Time from;
    Time to;
  };

  void carry(const Endpoint& from, const Endpoint& to, const Bytes& datagram, Duration extra);
  void deliver(const Endpoint& from, const Endpoint& to, const Bytes& datagram);
  Bytes damaged(const Bytes& datagram);
  bool swallowed(const Endpoint& from, const Endpoint& to) const;
  Time departure(const Endpoint& from, const Endpoint& to, std::size_t size);

  Events& events_;
  const Scenario& scenario_;
  Random random_;
  bool trace_;
  std::unordered_map<Address, Handler> handlers_;
  std::unordered_map<std::uint64_t, Time> busy_until_;  // by path
  std::vector<Hole> blackouts_;
  std::uint64_t packets_ = 0;
};

}  // namespace sluice::sim
