// How errors speak of a job and its ranks. It may have a name; and a channel is a job of its own,
// but who reads of it knows the job that it belongs to.
#pragma once

#include <string>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/abort_info.hpp"

namespace sluice::worker {

struct JobLabel {
  std::string job = {};          ///< "7", "bert-large (108174750)"
  std::vector<Rank> ranks = {};  ///< by the job's own numbers; those beyond are known as they are
  std::string announced_name = {};  ///< to aggregators, without blanks; empty: it has no name

  std::string name() const { return "job " + job; }
  /// What aggregators are told of a job that ranks of this one make: "bert/color-1".
  std::string announced_name_of_part(const std::string& part) const {
    return (announced_name.empty() ? job : announced_name) + "/" + part;
  }
  Rank of(Rank own) const { return own.value < ranks.size() ? ranks[own.value] : own; }

  /// "1, 2, 5": the first eight, and how many more there are.
  std::string text_of(const RankSet& ranks) const {
    return sluice::text_of(ranks, [this](Rank rank) { return of(rank); });
  }

  /// The error of what ended the job.
  Error error_of(AbortInfo why) const {
    why.rank_a = of(why.rank_a);
    why.rank_b = of(why.rank_b);
    return to_error(why, job);
  }
};

}  // namespace sluice::worker
