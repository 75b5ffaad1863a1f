// The candidates of a job, which wait for it to form: which ranks have joined, whether they agree,
// and what they form (rules 16 to 20 of docs/protocol.md).
//
// A job forms when all N ranks have joined and are compatible. Every CHALLENGE has a serial, which
// orders the joins: the newest join of a rank wins, and all joins up to the mark of the last
// formation or end are void. On shards other than 0, ranks also wait here while an earlier
// generation of the job is active.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "aggregator/engine/job_record.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

/// A rank that waits, as its last JOIN described it.
struct Candidate {
  Endpoint endpoint;
  wire::Join join;
  std::uint64_t first_nonce = 0;  // of the process that joined first
  std::uint64_t latest_serial = 0;
  Time since{};  // of the first JOIN with this nonce
  Time seen{};   // of the latest
};

using Candidates = std::unordered_map<std::uint16_t, Candidate>;  // by rank

class Formation {
 public:
  explicit Formation(JobRecord& record) : record_(record), config_(record.config) {}

  /// Why this aggregator refuses a JOIN whatever other ranks have joined; empty if it does not.
  static std::optional<AbortInfo> invalid(const wire::Join& join, const EngineConfig& config,
                                          const JobProtection& protection);

  bool empty() const { return candidates_.empty(); }
  const Candidates& candidates() const { return candidates_; }

  /// Handles a JOIN that is not about the generation that is active here. Sends ABORT if the JOIN
  /// is refused; else the job may be complete(), or the caller sends PENDING with the absent()
  /// ranks.
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now, ControlPackets& out);
  /// Adds a rank that has waited elsewhere.
  void hold(const Endpoint& from, const wire::Join& join, Time now);

  /// The ranks that the sender of this JOIN waits for; empty if it is not a candidate.
  RankSet absent(const wire::Join& join) const;

  /// Whether all ranks have joined and are compatible. Ranks of different generations are, too, if
  /// none has made progress. All joins must be fresh: a rank whose join is old may be a member at
  /// another aggregator by now.
  bool complete(Time now) const;
  /// What the candidates form once they are complete, and whether they go on with progress that
  /// they made elsewhere. `buffers_claimed` are those of all active jobs.
  struct Agreement {
    Session session;
    bool resumed = false;
  };
  Agreement agree(std::size_t buffers_claimed) const;
  /// The first of the candidates that are of another build than this daemon, if any is.
  struct OtherBuild {
    Rank rank{};
    std::string build;
    std::size_t others = 0;  // how many more there are
  };
  std::optional<OtherBuild> other_build() const;
  /// Forgets the candidates: they have formed a job.
  void clear();

  /// Refuses all candidates.
  void dismiss(const AbortInfo& info, ControlPackets& out);

  void on_time(Time now, ControlPackets& out);
  Time next_deadline() const;
  void excuse_pause(Duration pause);
  void on_disconnect(std::uint16_t port_id, Time now, ControlPackets& out);

 private:
  std::optional<AbortInfo> disagrees(const wire::Join& join) const;
  void end_broken_lives(ControlPackets& out);
  void end_generation(std::uint64_t generation, const AbortInfo& why, ControlPackets& out);
  const Candidate* holder() const;
  std::optional<Rank> rank_of_other_generation() const;
  bool same_generation() const;
  bool is_fresh(const Candidate& candidate, Time now) const;
  AbortInfo why_not_formed(Time now) const;
  Time forming_since() const;
  Time formation_ends() const;
  Time wait_is_long() const;
  void report_wait();
  Time forgotten_at(const Candidate& candidate) const;
  std::uint16_t default_streams(const Session& session, std::size_t buffers_claimed) const;
  std::size_t streams_with_room(const Session& session, std::size_t buffers_claimed) const;
  bool have_hosts_in_common() const;

  JobRecord& record_;
  const EngineConfig& config_;
  Candidates candidates_;
  bool wait_is_reported_ = false;
  std::optional<std::uint64_t> conflict_serial_;  // newest serial when a conflict was first seen
};

}  // namespace sluice::aggregator
