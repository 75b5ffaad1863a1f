// How one job goes on at the next aggregator when this one retires (rule 26 of docs/protocol.md):
// it asks its members for a KEEPALIVE, and answers that they are not known here.
#pragma once

#include <chrono>
#include <optional>

#include "aggregator/engine/job_membership.hpp"
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

  /// Whether a member was sent away. It joins the next aggregator, and needs the others there.
  bool has_sent_away() const { return begun() && !sent_away_->empty(); }
  /// The members that were not sent away yet.
  RankSet still_here(const Members& members) const;

  void ask_who_stays(const JobMembership& membership, ControlPackets& out) const;
  /// Sends a member away, which has proven its identity by this KEEPALIVE. Returns true if it was
  /// the last one.
  bool send_away(const Endpoint& from, const Packet& keep_alive, JobMembership& membership,
                 ControlPackets& out);

 private:
  std::optional<RankSet> sent_away_;  // empty until the aggregator retires
};

}  // namespace sluice::aggregator
