// Under which numbers errors speak of a job and its ranks. A channel is a job of its own, but who
// reads of it knows the job that it belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/ids.hpp"
#include "common/protocol/abort_info.hpp"

namespace sluice::worker {

struct KnownAs {
  std::uint32_t job = 0;
  std::vector<Rank> ranks = {};  ///< by the job's own numbers; those beyond are known as they are

  std::string name() const { return "job " + std::to_string(job); }
  Rank of(Rank own) const { return own.value < ranks.size() ? ranks[own.value] : own; }

  /// The error of what ended the job.
  Error error_of(AbortInfo why) const {
    why.rank_a = of(why.rank_a);
    why.rank_b = of(why.rank_b);
    return to_error(why, job);
  }
};

}  // namespace sluice::worker
