#include "aggregator/multicast.hpp"

#include <algorithm>
#include <limits>

#include "common/base/multicast.hpp"

namespace sluice::aggregator {
namespace {

constexpr std::size_t kNoPath = std::numeric_limits<std::size_t>::max();

constexpr std::uint64_t kMayLack = 3;  // BEACONs: lost, or under way

// Who loses more than one in eight results of the group is better off without it. One loss of all
// that is under way says nothing.
constexpr std::uint64_t kFewRepairs = 32;
constexpr std::uint64_t kRoundsPerRepair = 8;
constexpr Duration kFirstUnicast = std::chrono::seconds(10);
constexpr Duration kLongestUnicast = std::chrono::minutes(5);

}  // namespace

void Multicast::begin(std::uint32_t group, std::span<const Endpoint> members, Duration interval) {
  group_ = group;
  interval_ = interval;
  paths_.clear();
  members_.assign(members.size(), Member{.unicast_for = kFirstUnicast});
  beacon_ = 0;
  last_ = {};
  due_ = kNever;
  for (std::uint16_t r = 0; r < members.size(); ++r) put(Rank{r}, members[r]);
}

/// Groups are of networks: who shares memory with us is alone at his port.
void Multicast::put(Rank r, const Endpoint& at) {
  Member& member = members_[r.value];
  member.path = kNoPath;
  if (group_ == 0 || !at.off_machine) return;
  Endpoint group = at;
  group.ipv4 = group_;
  group.mac = multicast_mac(group_);
  const auto found = std::find_if(paths_.begin(), paths_.end(),
                                  [&](const Path& path) { return path.group == group; });
  member.path = static_cast<std::size_t>(found - paths_.begin());
  if (found == paths_.end()) paths_.push_back({.group = group, .members = {}, .hearing = {}});
  paths_[member.path].members.insert(r);
}

void Multicast::rebound(Rank r, const Endpoint& to) {
  remove(r);
  members_[r.value] = {.bound_at = beacon_, .unicast_for = kFirstUnicast};
  put(r, to);
}

void Multicast::remove(Rank r) {
  Member& member = members_[r.value];
  if (member.path >= paths_.size()) return;
  paths_[member.path].hearing.erase(r);
  paths_[member.path].members.erase(r);
  member.hears = false;
  member.path = kNoPath;
}

// -------------------------------------------------------------------------------------- who hears
void Multicast::on_keep_alive(Rank r, std::uint64_t heard, Time now) {
  Member& member = members_[r.value];
  if (!has_group(member) || heard > beacon_) return;  // of no BEACON of ours
  const bool lacks_many = heard + kMayLack < beacon_;
  if (heard == beacon_ ? beacon_ == 0 : !lacks_many) ask(now);
  const bool shown = heard != 0 && !lacks_many;
  set_hears(r, shown && now >= member.unicast_until && !loses_much(member, now), now);
}

void Multicast::set_hears(Rank r, bool hears, Time now) {
  Member& member = members_[r.value];
  if (member.hears == hears) return;
  member.hears = hears;
  count_from(member, now);
  RankSet& hearing = paths_[member.path].hearing;
  hears ? hearing.insert(r) : hearing.erase(r);
}

void Multicast::count_from(Member& member, Time now) const {
  member.repairs = 0;
  member.counted_from = now;
  member.rounds_then = paths_[member.path].rounds;
}

/// Whether it did since it was looked at last, which is looked at once an interval.
bool Multicast::loses_much(Member& member, Time now) const {
  if (!member.hears || now < after(member.counted_from, interval_)) return false;
  const std::uint64_t rounds = paths_[member.path].rounds - member.rounds_then;
  const bool much = member.repairs >= kFewRepairs && rounds < member.repairs * kRoundsPerRepair;
  count_from(member, now);
  if (!much) return false;
  member.unicast_until = after(now, member.unicast_for);
  member.unicast_for = std::min(2 * member.unicast_for, kLongestUnicast);
  return true;
}

/// One BEACON more shows soon if the group reaches nobody there any more.
void Multicast::repaired(Rank r) {
  Member& member = members_[r.value];
  if (!member.hears) return;
  ++member.repairs;
  ask(last_);
}

bool Multicast::is_deaf(Rank r) const {
  const Member& member = members_[r.value];
  return has_group(member) && !member.hears &&
         (member.unicast_until > Time{} || beacon_ > member.bound_at + kMayLack);
}

std::uint64_t Multicast::next_beacon(Time now) {
  last_ = now;
  due_ = after(now, interval_);
  return ++beacon_;
}

}  // namespace sluice::aggregator
