// One rank on one stream: what it has for the rounds of its op. Where it stands among them, and
// what it waits for, is its end's. Pure state; the generator moves it. Results are not kept, so all
// that is known of one that came early is that it came.
#pragma once

#include <array>
#include <cstdint>

#include "bench/pktgen/schedule.hpp"
#include "common/protocol/wire.hpp"
#include "rounds/waiting_end.hpp"

namespace sluice::pktgen {

struct Flow {
  StreamId stream{};
  Rank rank{};
  rounds::WaitingEnd end;
  std::uint64_t owned = 0;  ///< bit c: this rank's block of column c travels in this round
  OpNumber op = 0;
  std::uint16_t turn = 0;                     ///< of its stream in this op
  bool first = true;                          ///< the round is the first of its op
  bool running = true;                        ///< false: its last op is done
  std::array<Row, wire::kMaxColumns> rows{};  ///< current block by column

  bool owes() const { return first || owned != 0; }
};

}  // namespace sluice::pktgen
