// How one job goes on at the next aggregator when this one retires (rule 26 of docs/protocol.md):
// its members are asked for a KEEPALIVE, and by the answer learn that they are not known here.
#pragma once

#include <chrono>
#include <optional>

#include "aggregator/engine/membership.hpp"
#include "common/base/endpoint.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"

namespace sluice::aggregator {

/// How often members are asked for a KEEPALIVE.
inline constexpr Duration kSendAwayInterval = std::chrono::milliseconds(20);

class Retirement {
 public:
  void begin() {
    if (!begun()) sent_away_.emplace();
  }
  bool begun() const { return sent_away_.has_value(); }

  /// Whether a member was told to go; it joins the next aggregator, and needs the others there.
  bool has_sent_away() const { return begun() && !sent_away_->empty(); }
  /// Members that were not told.
  RankSet still_here(const Members& members) const;

  void ask_who_stays(const Membership& membership, ControlPackets& out) const;
  /// Tells a member to go; it has proven who it is by this KEEPALIVE. True: it was the last one.
  bool send_away(const Endpoint& from, const Packet& keep_alive, Membership& membership,
                 ControlPackets& out);

 private:
  std::optional<RankSet> sent_away_;  // none while the aggregator does not retire
};

}  // namespace sluice::aggregator
