// What outlives the formations of a job: its tombstones, which joins are void, its secret, and
// events that the engine has not taken yet. Formation and Members write into the same record.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/engine/config.hpp"
#include "aggregator/engine/job_event.hpp"
#include "aggregator/engine/serials.hpp"
#include "aggregator/engine/tombstones.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/control_packets.hpp"

namespace sluice::aggregator {

class JobRecord {
 public:
  JobRecord(const EngineConfig& config, const Serials& serials, std::uint32_t job)
      : config(config),
        job(job),
        protection(config.protection_of(job)),
        serials_(serials),
        mark_(serials.last_void()) {}

  const EngineConfig& config;
  const std::uint32_t job;
  std::string name;  ///< of the last JOIN that was accepted and had a name; empty: none had
  JobProtection protection;
  Tombstones tombstones;

  /// Whether there are tombstones.
  bool remembers() const { return !tombstones.empty(); }

  /// Joins with serials up to this one are void.
  std::uint64_t mark() const { return mark_; }
  bool is_void(const wire::Join& join) const { return join.serial <= mark_; }
  void void_joins() { mark_ = serials_.newest(); }
  std::uint64_t newest_serial() const { return serials_.newest(); }

  /// The events since the last call of take_events(), in order.
  bool has_events() const { return !events_.empty(); }
  std::vector<JobEvent> take_events() { return std::exchange(events_, {}); }
  void report(const JobEvent& event) {
    events_.push_back(event);
    events_.back().name = name;
  }

  /// Sends PENDING: the rank that joins waits for the `absent` ranks or, if there are none, only
  /// for its turn.
  void send_pending(const Endpoint& to, const wire::Join& join, const RankSet& absent,
                    ControlPackets& out) const;
  void refuse(const Endpoint& to, const wire::Join& join, const AbortInfo& info,
              ControlPackets& out);
  /// Whether the join names a generation or an attempt that has ended. If so, answers with the
  /// reason.
  bool answered_again(const Endpoint& from, const wire::Join& join, ControlPackets& out);

 private:
  const Serials& serials_;
  std::uint64_t mark_;
  std::vector<JobEvent> events_;
};

/// An AbortInfo that names one rank and one value.
AbortInfo about(wire::AbortReason reason, Rank rank, std::uint64_t value = 0);
/// An AbortInfo that names one rank and how long it was silent.
AbortInfo about(wire::AbortReason reason, Rank rank, Duration silence);

/// Whether the worker has applied results of a generation of the job.
bool has_progress(const wire::Join& join);

}  // namespace sluice::aggregator
