// The way to the other end, as all streams that use it know it together.
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
