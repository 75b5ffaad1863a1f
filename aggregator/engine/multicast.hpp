// Multicast delivery of one job: which members receive the group, and the paths on which one packet
// reaches them all (docs/protocol.md#multicast-delivery).
//
// A member must show that it receives the group: BEACONs go only to the group, and a member's
// KEEPALIVE reports which BEACONs it has received. A member that lacks the last ones, or many, gets
// its results by unicast again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

class Multicast {
 public:
  /// Members that one packet to the group may reach: those behind one port.
  struct Path {
    Endpoint group;
    RankSet members;
    RankSet receiving;  ///< the members that receive it
  };

  /// `members` are the addresses by rank; no rank has left. `group` 0 means no group. BEACONs are
  /// `interval` apart, unless one is needed earlier.
  void begin(std::uint32_t group, std::span<const Endpoint> members, Duration interval);
  /// A member has a new address, and has not shown yet that it receives the group there.
  void rebound(Rank r, const Endpoint& to);
  void left(Rank r) { remove(r); }

  std::span<const Path> paths() const { return paths_; }

  /// A member's newest KEEPALIVE reports the number of the `newest` BEACON that it has received,
  /// and which of those before (bit i is for `newest` - i). This decides whether the member
  /// receives the group from now on. It may also make another BEACON due.
  void on_keep_alive(Rank r, std::uint64_t newest, std::uint32_t received_of_last, Time now);

  /// A result was sent again to this member. If it receives the group, a BEACON is due soon, which
  /// shows whether it still does.
  void repaired(Rank r);

  /// Whether a member does not receive the group, after enough BEACONs to show that it does.
  bool misses_group(Rank r) const;
  bool receives_group(Rank r) const { return members_[r.value].receives; }

  /// When the next BEACON is due, and its number once it is.
  Time beacon_due() const { return beacon_due_; }
  std::uint64_t next_beacon(Time now);

 private:
  static constexpr std::size_t kNoPath = ~std::size_t{0};
  struct Member {
    std::size_t path = kNoPath;
    bool receives = false;
    std::uint64_t bound_at = 0;     // the last BEACON before it, or its path's second member, came
    std::uint64_t judged_from = 0;  // the last BEACON when it began to receive the group
    Time unicast_until{};           // because it lost too many BEACONs
    Duration unicast_for{};         // how long the next time
  };

  bool has_group(const Member& member) const {
    return member.path < paths_.size() && paths_[member.path].members.size() > 1;
  }
  void put(Rank r, const Endpoint& at);
  void remove(Rank r);
  void set_receives(Rank r, bool receives);
  void ask(Time at) {
    beacon_due_ = std::min(beacon_due_, std::max(at, after(last_beacon_at_, kShortestGap)));
  }

  static constexpr Duration kShortestGap = std::chrono::milliseconds(20);  // between BEACONs

  std::uint32_t group_ = 0;
  std::vector<Path> paths_;
  std::vector<Member> members_;  // by rank
  std::uint64_t beacon_ = 0;     // the last one
  Time last_beacon_at_{};
  Time beacon_due_ = kNever;
  Duration interval_{};
};

}  // namespace sluice::aggregator
