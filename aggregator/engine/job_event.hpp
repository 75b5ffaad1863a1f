// What happened to a job: one type for what membership tells its engine, and the engine an
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
  std::size_t streams = 0;  ///< that wait for it or others
  Duration waited{};        ///< since the round was first seen to run, at least
  Duration silence{};       ///< of the rank, so far
};

/// Something an operator wants to read of; made in the control plane only.
struct JobEvent {
  enum class Kind {
    kFormed,
    kResumed,
    kFormationAbandoned,
    kLeft,
    kAborted,
    kSentAway,  ///< all its ranks were told to go to the next aggregator
    kWaits,     ///< it has waited for long to form, for the ranks `absent`
    kRefused,
    kStraggler,
    kOtherBuild,    ///< `rank` and `others` more that formed the job are of another build than we
    kMissesGroup,   ///< `rank` does not hear the job's multicast group: its results go by unicast
    kReceivesGroup  ///< it hears it again
  } kind = Kind::kFormed;
  Session session{};                  ///< job always; the rest where formed
  std::optional<AbortInfo> reason{};  ///< of an abort or a refusal
  std::optional<Rank> reported_by{};  ///< who ended the job for this reason, if it was a rank
  Straggler straggler{};
  std::optional<Rank> rank{};
  std::string name{};   ///< of the job, as it was told; empty: it has none
  std::string build{};  ///< of `rank`
  std::size_t others = 0;
  RankSet absent{};

  /// "bert-large (457746600)", or the number alone.
  std::string job() const { return job_label(session.job, name); }
};

/// Events until an operator is told of them, so many at most.
struct JobEvents {
  std::vector<JobEvent> list;
  std::size_t frequent = 0;  ///< in the list, of those that peers can make at will
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
