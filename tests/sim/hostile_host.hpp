// A host on the segment that is no member and knows no secret. It overhears the links of some
// ranks, but cannot delay what it overhears. It replays packets to their receivers and to others,
// sends them with its own Ethernet address, edits what it can, and forges what needs no proof. Jobs
// that authenticate every packet must not be affected.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/host.hpp"

namespace sluice::sim {

class HostileHost {
 public:
  explicit HostileHost(World& world);

  void overhear(const Endpoint& from, const Endpoint& to, const Bytes& datagram);
  void add_to(Coverage& coverage) const;

 private:
  struct Overheard {
    Endpoint from;
    Endpoint to;
    Bytes datagram;
  };
  enum class Act {
    kReplay,
    kReplayElsewhere,
    kRedirect,
    kAsk,
    kCollect,
    kDeny,
    kFlood,
    kEdit,
    kCount
  };
  using KeepAliveId = std::pair<std::uint64_t, std::uint64_t>;  // token and number

  void remember(wire::Kind kind, Overheard packet);
  void act();
  const Overheard* any();
  const Overheard* any(wire::Kind kind);
  void send(const Endpoint& from, const Endpoint& to, Bytes datagram, bool changed = false);
  void replay_elsewhere(const Overheard& packet);
  void redirect(const Overheard& packet);
  void ask_about_token();
  void collect_refusals();
  void refuse(const Endpoint& from, const Endpoint& to, const Packet& keep_alive);
  void deny_the_secret();
  void flood();
  void edit(const Overheard& packet);
  void on_answer(const Arrival& arrival);

  World& world_;
  Random random_;
  Endpoint self_;
  std::map<wire::Kind, std::vector<Overheard>> overheard_;  // the newest few of each kind
  std::map<KeepAliveId, Bytes> refusals_;                   // signed, for a future KEEPALIVE
  std::set<std::tuple<std::uint32_t, Address, Address>>
      challenged_;  // by job: ranks, and shards that were proven to them
  std::uint64_t acts_[static_cast<std::size_t>(Act::kCount)] = {};
  std::uint64_t answers_ = 0;
  std::uint64_t refused_ = 0;
};

}  // namespace sluice::sim
