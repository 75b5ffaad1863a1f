#include "aggregator/monitoring/job_log.hpp"

#include <chrono>
#include <string>

#include "aggregator/monitoring/job_event_fields.hpp"
#include "common/base/limits.hpp"
#include "common/base/version.hpp"
#include "common/config/address.hpp"

namespace sluice::aggregator {
namespace {

std::int64_t in_ms(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

}  // namespace

void log_job_event(LimitedLog& log, const JobEvent& event, std::uint16_t lane) {
  using Kind = JobEvent::Kind;
  using spdlog::level::level_enum;
  const std::string where = lane == 0 ? "" : fmt::format(" (lane {})", lane);
  const auto as = [&](level_enum level) { return lane == 0 ? level : level_enum::debug; };
  const LogContext context(log_fields(event, lane));
  const Session& s = event.session;
  const std::string job = event.job();
  switch (event.kind) {
    case Kind::kFormed:
    case Kind::kResumed:
      log.log(event.kind == Kind::kFormed ? "formed jobs" : "resumed jobs", as(level_enum::info),
              "job {}: {}, {} ranks, {} streams, blocks of {}, history {}, payload {} B{}", job,
              event.kind == Kind::kFormed ? "formed" : "resumed with its progress", s.ranks,
              s.streams, s.block_elements, s.history, s.payload_bytes, where);
      break;
    case Kind::kWaits:
      if (lane != 0) break;
      log.log("jobs that wait for ranks", level_enum::info,
              "job {}: has waited {} s for rank {} to join", job, limits::kSilentWait.count(),
              text_of(event.absent));
      break;
    case Kind::kOtherBuild:
      if (lane != 0) break;
      log.log("ranks of other builds", level_enum::warn,
              "job {}: rank {}{} is of build {}, this daemon of {}: use one build", job,
              event.rank->value,
              event.others == 0 ? "" : fmt::format(" (as {} more)", event.others), event.build,
              build_id());
      break;
    case Kind::kFormationAbandoned:
      log.log("abandoned formations", level_enum::warn,
              "job {}: formation abandoned: not all ranks joined here; they join again{}", job,
              where);
      break;
    case Kind::kLeft:
      log.log("jobs that left", as(level_enum::info), "job {}: all {} ranks have left{}", job,
              s.ranks, where);
      break;
    case Kind::kSentAway:
      log.log("jobs sent away", as(level_enum::info), "job {}: all {} ranks were told{}", job,
              s.ranks, where);
      break;
    case Kind::kAborted:
      log.log(
          "ended jobs", as(level_enum::warn), "job {}: ended: {}{}{}", job, explain(*event.reason),
          event.reported_by ? fmt::format(", says rank {}", event.reported_by->value) : "", where);
      break;
    case Kind::kStraggler:
      log.log("stragglers", level_enum::warn,
              "job {}: op {} has waited {} ms for rank {} (heard {} ms ago) on {} streams{}", job,
              event.straggler.op, in_ms(event.straggler.waited), event.straggler.rank.value,
              in_ms(event.straggler.silence), event.straggler.streams, where);
      break;
    case Kind::kMissesGroup:
      log.log("ranks that do not receive a group", level_enum::warn,
              "job {}: rank {} does not receive group {}, or not well: its results go by unicast{}",
              job, event.rank->value, config::ipv4_to_string(s.group), where);
      break;
    case Kind::kReceivesGroup:
      log.log("ranks that receive a group", level_enum::info,
              "job {}: rank {} receives group {} again{}", job, event.rank->value,
              config::ipv4_to_string(s.group), where);
      break;
    case Kind::kRefused:
      log.log("refused joins", level_enum::warn, "job {}: a join was refused: {}{}", job,
              explain(*event.reason), where);
      break;
  }
}

}  // namespace sluice::aggregator
