// How ranks and jobs are admitted: which senders are answered and how often, what a sender has
// proven, and whether there is room for one more job (rules 16 to 20 of docs/protocol.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "aggregator/engine/engine_context.hpp"
#include "aggregator/engine/job_table.hpp"
#include "aggregator/engine/reply_budget.hpp"
#include "common/base/endpoint.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/job_protection.hpp"
#include "common/protocol/packet.hpp"

namespace sluice::aggregator {

class Admission {
 public:
  Admission(EngineContext& engine, JobTable& jobs)
      : engine_(engine),
        jobs_(jobs),
        proven_replies_(engine.config.reply_rate_limit, engine.config.unique()),
        unproven_replies_(engine.config.reply_rate_limit, engine.config.unique()) {}

  DropReason on_hello(const Endpoint& from, const Packet& packet, Time now);
  DropReason on_join(const Endpoint& from, const Packet& packet, Time now);

  /// Answers a packet that no member of its job has sent, within the reply rate limit. `job` is
  /// null if it is not known.
  DropReason on_unknown(const Job* job, const Endpoint& from, const Packet& packet, Time now);
  /// Answers a HELLO of a version that we do not support with our versions. The answer proves
  /// nothing. It always has a CRC32C, as we do not know whether the sender demands one.
  void send_versions(const Endpoint& from, std::span<const std::byte> datagram, Time now);

  void set_reply_rate(std::uint32_t per_second) {
    proven_replies_.set_rate(per_second);
    unproven_replies_.set_rate(per_second);
  }
  /// Whether new jobs are refused. Those that lived at another aggregator of this shard may come.
  void close(bool closed) {
    if (!stopped()) admits_ = closed ? Admits::kKnownJobs : Admits::kAll;
  }
  /// No rank is admitted from now on.
  void stop() { admits_ = Admits::kNobody; }
  bool stopped() const { return admits_ == Admits::kNobody; }

 private:
  enum class Admits { kAll, kKnownJobs, kNobody };

  JobProtection protection_of(std::uint32_t id) const;
  template <class T>
  void refuse_unauthentic(const Endpoint& from, const Packet& packet,
                          const JobProtection& protection);
  Job* admit(const Endpoint& from, const wire::Join& join, const JobProtection& protection);
  std::optional<AbortInfo> no_room(const wire::Join& join) const;
  void report_refused(std::uint32_t id, const AbortInfo& why, std::string name = {}) const;

  EngineContext& engine_;
  JobTable& jobs_;
  // Two budgets: a flood of unproven senders delays no sender that has proven its address, or that
  // it knows the secret.
  ReplyBudget proven_replies_;
  ReplyBudget unproven_replies_;
  Admits admits_ = Admits::kAll;
};

}  // namespace sluice::aggregator
