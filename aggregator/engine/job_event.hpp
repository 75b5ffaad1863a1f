// What happened to a job. JobMembership reports such events to the engine, and the engine to an
// operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

inline std::string job_label(std::uint32_t job, const std::string& name) {
  const std::string number = std::to_string(job);
  return name.empty() ? number : name + " (" + number + ")";
}

/// A rank that an op waits for, though it is alive.
struct Straggler {
  Rank rank{};
  OpNumber op = 0;
  std::size_t streams = 0;  ///< how many wait for it or for others
  Duration waited{};        ///< since the round was first seen to run, at least
  Duration silence{};       ///< of the rank, so far
};

/// An event that operators want to read about. Only the control plane creates events.
struct JobEvent {
  enum class Kind {
    kFormed,
    kResumed,
    kFormationAbandoned,
    kLeft,
    kAborted,
    kSentAway,  ///< all its ranks were sent to the next aggregator
    kWaits,     ///< its formation has waited long for the ranks `absent`
    kRefused,
    kStraggler,
    kOtherBuild,    ///< `rank` and `others` more in the job are of another build than this daemon
    kMissesGroup,   ///< `rank` does not receive the job's group: its results go by unicast
    kReceivesGroup  ///< `rank` receives the group again
  } kind = Kind::kFormed;
  Session session{};                  ///< `job` is always set; the rest if the job has formed
  std::optional<AbortInfo> reason{};  ///< of an abort or a refusal
  std::optional<Rank> reported_by{};  ///< the rank that ended the job for this reason, if one did
  Straggler straggler{};
  std::optional<Rank> rank{};
  std::string name{};   ///< of the job; empty: it has none
  std::string build{};  ///< of `rank`
  std::size_t others = 0;
  RankSet absent{};

  /// "bert-large (457746600)", or the number alone.
  std::string job() const { return job_label(session.job, name); }
};

/// A limited number of events that are not reported to an operator yet.
struct JobEvents {
  std::vector<JobEvent> list;
  std::size_t frequent = 0;  ///< events in the list that peers can cause at will
  std::uint64_t lost = 0;

  void keep(const JobEvent& event) {
    using Kind = JobEvent::Kind;
    const bool is_frequent = event.kind == Kind::kWaits || event.kind == Kind::kRefused ||
                             event.kind == Kind::kOtherBuild || event.kind == Kind::kMissesGroup ||
                             event.kind == Kind::kReceivesGroup;
    if (list.size() >= limits::kMaxEvents ||
        (is_frequent && frequent >= limits::kMaxFrequentEvents)) {
      ++lost;
      return;
    }
    frequent += is_frequent ? 1 : 0;
    list.push_back(event);
  }
};

}  // namespace sluice::aggregator
