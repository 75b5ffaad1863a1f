// One rank on one stream: its blocks in the rounds of its op. Its `end` has its position, and knows
// what it waits for. This is pure state, which the generator changes. Results are not kept, so of
// an early result only the arrival is known.
#pragma once

#include <array>
#include <cstdint>

#include "bench/pktgen/block_schedule.hpp"
#include "common/protocol/wire.hpp"
#include "rounds/waiting_end.hpp"

namespace sluice::pktgen {

struct Flow {
  StreamId stream{};
  Rank rank{};
  rounds::WaitingEnd end;
  std::uint64_t owned = 0;  ///< bit c: this rank's block of column c travels in this round
  OpNumber op = 0;
  std::uint16_t turn = 0;                     ///< the number of its stream in this op
  bool first = true;                          ///< the round is the first of its op
  bool running = true;                        ///< false: its last op is done
  std::array<Row, wire::kMaxColumns> rows{};  ///< current block by column

  bool owes() const { return first || owned != 0; }
};

}  // namespace sluice::pktgen
