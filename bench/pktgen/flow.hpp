// One rank on one stream: where it stands, and what it waits for. Pure state; the generator moves
// it. Results are not kept, so all that is known of one that came early is that it came.
#pragma once

#include <array>
#include <cstdint>

#include "bench/pktgen/schedule.hpp"
#include "common/base/time.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::pktgen {

struct Flow {
  StreamId stream{};
  Rank rank{};
  Round position{};         ///< the round awaited
  Round told{};             ///< position last told to the aggregator
  std::uint64_t early = 0;  ///< bit i: the result of round position + 1 + i is here
  std::uint64_t owned = 0;  ///< bit c: this rank's block of column c travels in this round
  OpNumber op = 0;
  Time sent_at{};
  Time due = kNever;       ///< of what was sent, or is awaited; never while it waits for its turn
  std::uint16_t turn = 0;  ///< of its stream in this op
  std::uint8_t sends = 0;  ///< of this round's DATA
  std::uint8_t backoffs = 0;
  bool first = true;                          ///< the round is the first of its op
  bool held = false;                          ///< the aggregator has our DATA: probe, don't resend
  bool running = false;                       ///< false: its last op is done
  std::array<Row, wire::kMaxColumns> rows{};  ///< current block by column

  bool owes() const { return first || owned != 0; }
};

}  // namespace sluice::pktgen
