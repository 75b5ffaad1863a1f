// How messages name a job and its ranks. A job may have a name. A channel is a job of its own, but
// messages name the job that it belongs to, and that job's ranks: the user knows these.
#pragma once

#include <string>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/abort_info.hpp"

namespace sluice::worker {

struct JobLabel {
  std::string job = {};             ///< "7", "bert-large (108174750)"
  std::vector<Rank> ranks = {};     ///< by the job's own numbers; others keep their numbers
  std::string announced_name = {};  ///< to aggregators, without blanks; empty: it has no name

  std::string name() const { return "job " + job; }
  /// The announced name of a job that ranks of this one form: "bert/color-1".
  std::string announced_name_of_part(const std::string& part) const {
    return (announced_name.empty() ? job : announced_name) + "/" + part;
  }
  Rank of(Rank own) const { return own.value < ranks.size() ? ranks[own.value] : own; }

  /// "1, 2, 5": the first eight, and how many more there are.
  std::string text_of(const RankSet& ranks) const {
    return sluice::text_of(ranks, [this](Rank rank) { return of(rank); });
  }

  /// The error for the event that ended the job.
  Error error_of(AbortInfo why) const {
    why.rank_a = of(why.rank_a);
    why.rank_b = of(why.rank_b);
    return to_error(why, job);
  }
};

}  // namespace sluice::worker
