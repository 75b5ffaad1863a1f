// Those who wait for a job to form: who has come, whether they agree, and what they form (rules 16
// to 20 of docs/protocol.md).
//
// A job forms when all N ranks have joined and go together. Serials, handed out with every
// CHALLENGE, order the joins: the newest of a rank wins, and all up to the mark of the last
// formation or end are void. On shards other than 0 ranks wait here also while an earlier
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

/// A rank that waits, as it said last.
struct Candidate {
  Endpoint endpoint;
  wire::Join join;
  std::uint64_t first_nonce = 0;  // of the process that was here first
  std::uint64_t latest_serial = 0;
  Time since{};  // of the first JOIN with this nonce
  Time seen{};   // of the latest
};

using Candidates = std::unordered_map<std::uint16_t, Candidate>;  // by rank

class Formation {
 public:
  explicit Formation(JobRecord& record) : record_(record), config_(record.config) {}

  /// What this aggregator refuses whoever else has joined.
  static std::optional<AbortInfo> invalid(const wire::Join& join, const EngineConfig& config,
                                          const JobProtection& protection);

  bool empty() const { return candidates_.empty(); }
  const Candidates& candidates() const { return candidates_; }

  /// A JOIN that is not about the generation that is active here. Sends ABORT if it is refused;
  /// else the job may be complete(), or the sender is to be told who is absent().
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now, ControlPackets& out);
  /// A rank that waited elsewhere.
  void hold(const Endpoint& from, const wire::Join& join, Time now);

  /// The ranks that somebody who waits here waits for; none for anybody else.
  RankSet absent(const wire::Join& join) const;

  /// All are there and go together: ranks of different generations, too, if none has made progress.
  /// What one of them said a while ago may be true no more: it may be in at another aggregator by
  /// now.
  bool complete(Time now) const;
  /// What the complete candidates form, and whether they go on with progress made elsewhere.
  /// `buffers_claimed`: by all jobs that are active.
  struct Agreement {
    Session session;
    bool resumed = false;
  };
  Agreement agree(std::size_t buffers_claimed) const;
  /// The first of the candidates that are of another build than we, if any is.
  struct OtherBuild {
    Rank rank{};
    std::string build;
    std::size_t others = 0;  // more of them
  };
  std::optional<OtherBuild> other_build() const;
  /// They wait no more: they have formed a job.
  void clear();

  /// Refuses all who wait.
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
  std::optional<std::uint64_t> conflict_serial_;  // newest when they were first seen to conflict
};

}  // namespace sluice::aggregator
