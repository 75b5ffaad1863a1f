// Whether the training was right. All ranks call these together and reach the same answer.
#pragma once

#include <iosfwd>

#include <sluice/sluice.hpp>

#include "examples/section_trainer/plan.hpp"
#include "examples/section_trainer/records.hpp"
#include "examples/section_trainer/table.hpp"

namespace section_trainer {

/// How far a weight may be from that of a run that adds in another order. Rounding alone makes it
/// about 3e-6 after a dozen epochs, where the largest weights are near 30.
constexpr double kTolerance = 1e-4;

/// All ranks hold the same bits: their BLAKE2b-256 digests are equal.
bool weights_equal_on_all_ranks(sluice::Communicator& job, const Table& weights, std::ostream& out);

/// The weights are bit for bit those of a single process that adds in rank order, and within
/// kTolerance those of one that takes each global batch whole. Rank 0 computes both.
bool weights_match_single_process(sluice::Communicator& job, const Table& weights,
                                  const Dataset& data, const Plan& plan, std::ostream& out);

/// True on all ranks when it is on every rank.
bool all_agree(sluice::Communicator& job, bool mine);

}  // namespace section_trainer
