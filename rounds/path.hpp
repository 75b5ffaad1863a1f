// What all streams of a shard know of the path to the other end.
#pragma once

#include "rounds/congestion_window.hpp"
#include "rounds/recent_rounds.hpp"
#include "rounds/rto.hpp"

namespace sluice::rounds {

struct Path {
  explicit Path(RetransmissionTimeout::Limits limits) : rto(limits) {}

  RetransmissionTimeout rto;
  RecentRounds recent;
  CongestionWindow window;
};

}  // namespace sluice::rounds
