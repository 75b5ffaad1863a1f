#include "aggregator/multicast.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "common/base/multicast.hpp"

namespace sluice::aggregator {
namespace {

constexpr std::size_t kNoPath = std::numeric_limits<std::size_t>::max();

constexpr std::uint64_t kMayLack = 3;  // BEACONs: lost, or under way

// Who loses more than a quarter of the BEACONs is better off without the group.
constexpr std::uint64_t kJudged = 32;
constexpr int kMayLose = 8;
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
void Multicast::on_keep_alive(Rank r, std::uint64_t heard, std::uint32_t heard_of_last, Time now) {
  Member& member = members_[r.value];
  if (!has_group(member) || heard > beacon_) return;  // of no BEACON of ours
  const bool lacks_many = heard + kMayLack < beacon_;
  if (heard == beacon_ ? beacon_ == 0 : !lacks_many) ask(now);
  const bool is_known = heard >= std::max(member.bound_at, member.judged_from) + kJudged;
  if (is_known && now >= member.unicast_until && std::popcount(~heard_of_last) > kMayLose) {
    member.judged_from = heard;
    member.unicast_until = after(now, member.unicast_for);
    member.unicast_for = std::min(2 * member.unicast_for, kLongestUnicast);
  }
  set_hears(r, heard != 0 && !lacks_many && now >= member.unicast_until);
}

void Multicast::set_hears(Rank r, bool hears) {
  Member& member = members_[r.value];
  member.hears = hears;
  RankSet& hearing = paths_[member.path].hearing;
  hears ? hearing.insert(r) : hearing.erase(r);
}

/// One BEACON more shows soon if the group reaches nobody there any more.
void Multicast::repaired(Rank r) {
  if (members_[r.value].hears) ask(last_);
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
