#include "aggregator/engine/multicast.hpp"

#include <algorithm>
#include <bit>

#include "common/base/multicast_address.hpp"
#include "common/base/source_ports.hpp"

namespace sluice::aggregator {
namespace {

// A member that loses more than a quarter of the BEACONs gets its results faster by unicast.
constexpr int kMayLose = wire::kBeaconsTold / 4;
constexpr Duration kFirstUnicast = std::chrono::seconds(10);
constexpr Duration kLongestUnicast = std::chrono::minutes(5);

}  // namespace

void Multicast::begin(std::uint32_t group, std::span<const Endpoint> members, Duration interval) {
  group_ = group;
  interval_ = interval;
  paths_.clear();
  members_.assign(members.size(), Member{.unicast_for = kFirstUnicast});
  beacon_ = 0;
  last_beacon_at_ = {};
  beacon_due_ = kNever;
  for (std::uint16_t r = 0; r < members.size(); ++r) put(Rank{r}, members[r]);
}

/// Only ranks on a network have a group. A rank that shares memory with us is alone at its port.
void Multicast::put(Rank r, const Endpoint& at) {
  if (group_ == 0 || !at.off_machine) return;
  Endpoint group = at;
  group.ipv4 = group_;
  group.mac = multicast_mac(group_);
  group.udp_port = kWorkerUdpPort;
  const auto find = [&](auto&& fits) {
    return static_cast<std::size_t>(std::find_if(paths_.begin(), paths_.end(), fits) -
                                    paths_.begin());
  };
  std::size_t at_path = find([&](const Path& path) { return path.group == group; });
  if (at_path == paths_.size())  // a path without members is used again: there are at most N
    at_path = find([](const Path& path) { return path.members.empty(); });
  if (at_path == paths_.size()) paths_.emplace_back();
  Path& path = paths_[at_path];
  path.group = group;
  path.members.insert(r);
  members_[r.value].path = at_path;
  if (path.members.size() != 2) return;
  // No BEACON has gone to this path until now.
  path.members.for_each([&](Rank each) { members_[each.value].bound_at = beacon_; });
}

void Multicast::rebound(Rank r, const Endpoint& to) {
  remove(r);
  members_[r.value] = {.bound_at = beacon_, .unicast_for = kFirstUnicast};
  put(r, to);
}

void Multicast::remove(Rank r) {
  Member& member = members_[r.value];
  if (member.path >= paths_.size()) return;
  paths_[member.path].receiving.erase(r);
  paths_[member.path].members.erase(r);
  member.receives = false;
  member.path = kNoPath;
}

// ------------------------------------------------------------------------------------ receivers
void Multicast::on_keep_alive(Rank r, std::uint64_t newest, std::uint32_t received_of_last,
                              Time now) {
  Member& member = members_[r.value];
  if (!has_group(member)) return;
  const bool lacks_many = newest + wire::kBeaconsMissed < beacon_;
  if (beacon_ == member.bound_at || (newest < beacon_ && !lacks_many)) ask(now);
  if (member.receives && newest >= member.judged_from + wire::kBeaconsTold &&
      std::popcount(~received_of_last) > kMayLose) {
    member.unicast_until = after(now, member.unicast_for);
    member.unicast_for = std::min(2 * member.unicast_for, kLongestUnicast);
  }
  const bool shown = newest > member.bound_at && newest <= beacon_ && !lacks_many;
  set_receives(r, shown && now >= member.unicast_until);
}

void Multicast::set_receives(Rank r, bool receives) {
  Member& member = members_[r.value];
  if (member.receives == receives) return;
  member.receives = receives;
  if (receives) member.judged_from = beacon_;
  RankSet& receiving = paths_[member.path].receiving;
  receives ? receiving.insert(r) : receiving.erase(r);
}

/// A further BEACON soon shows whether the group still reaches its members there.
void Multicast::repaired(Rank r) {
  if (members_[r.value].receives) ask(last_beacon_at_);
}

bool Multicast::misses_group(Rank r) const {
  const Member& member = members_[r.value];
  return has_group(member) && !member.receives &&
         (member.unicast_until > Time{} || beacon_ > member.bound_at + wire::kBeaconsMissed);
}

std::uint64_t Multicast::next_beacon(Time now) {
  last_beacon_at_ = now;
  beacon_due_ = after(now, interval_);
  return ++beacon_;
}

}  // namespace sluice::aggregator
