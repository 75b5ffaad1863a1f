// Multicast delivery of one job: which members hear the group, and where one packet reaches them
// all (docs/protocol.md#multicast-delivery).
//
// Nobody is believed to hear a group before he has shown it: BEACONs go to the group alone, and a
// member's KEEPALIVE tells which it got. Who lacks the last ones, or many, gets results by unicast
// again.
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
    RankSet receiving;  ///< of these
  };

  /// `members`: where each rank is, none of them has left. `group` 0: there is none. BEACONs are
  /// `interval` apart, unless somebody asks for one.
  void begin(std::uint32_t group, std::span<const Endpoint> members, Duration interval);
  /// A member is somewhere else now, and has shown nothing there.
  void rebound(Rank r, const Endpoint& to);
  void left(Rank r) { remove(r); }

  std::span<const Path> paths() const { return paths_; }

  /// A member's newest KEEPALIVE has the number of the newest BEACON that it got, and which of
  /// those before (bit i: newest - i): from then on it hears the group, or does not. It may also
  /// ask for another BEACON.
  void on_keep_alive(Rank r, std::uint64_t newest, std::uint32_t received_of_last, Time now);

  /// A result was sent again, to this member alone. Does the group still reach it?
  void repaired(Rank r);

  /// Whether a member does not hear the group, though there were BEACONs enough to show it.
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
    std::uint64_t bound_at = 0;     // the last BEACON when it, or another at its port, came there
    std::uint64_t judged_from = 0;  // the last one when it began to hear
    Time unicast_until{};           // as it lost too much
    Duration unicast_for{};         // the next time
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
