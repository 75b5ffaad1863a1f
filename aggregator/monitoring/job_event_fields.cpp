#include "aggregator/monitoring/job_event_fields.hpp"

#include <chrono>
#include <string>

#include <sluice/error.hpp>

#include "common/protocol/abort_info.hpp"

namespace sluice::aggregator {
namespace {

std::string name(JobEvent::Kind kind) {
  using Kind = JobEvent::Kind;
  switch (kind) {
    case Kind::kFormed:
      return "formed";
    case Kind::kResumed:
      return "resumed";
    case Kind::kFormationAbandoned:
      return "formation_abandoned";
    case Kind::kLeft:
      return "left";
    case Kind::kAborted:
      return "aborted";
    case Kind::kSentAway:
      return "sent_away";
    case Kind::kRefused:
      return "refused";
    case Kind::kStraggler:
      return "straggler";
    case Kind::kWaits:
      return "waits";
    case Kind::kOtherBuild:
      return "other_build";
    case Kind::kMissesGroup:
      return "group_unreachable";
    case Kind::kReceivesGroup:
      return "group_reachable";
  }
  return "?";
}

}  // namespace

LogFields log_fields(const JobEvent& event, std::uint16_t lane) {
  using std::chrono::milliseconds;
  LogFields fields{{"job", std::uint64_t{event.session.job}},
                   {"lane", std::uint64_t{lane}},
                   {"event", name(event.kind)}};
  const auto add = [&](std::string_view field, std::uint64_t value) {
    fields.push_back({field, value});
  };
  if (!event.name.empty()) fields.push_back({"job_name", event.name});
  if (!event.build.empty()) fields.push_back({"rank_build", event.build});
  if (!event.absent.empty()) add("absent_ranks", event.absent.size());
  if (event.session.ranks != 0) add("ranks", event.session.ranks);
  if (event.kind == JobEvent::Kind::kStraggler) {
    const Straggler& straggler = event.straggler;
    add("rank", straggler.rank.value);
    add("streams", straggler.streams);
    add("op", straggler.op);
    add("waited_ms", static_cast<std::uint64_t>(
                         std::chrono::duration_cast<milliseconds>(straggler.waited).count()));
  } else if (event.session.streams != 0) {
    add("streams", event.session.streams);
  }
  if (event.rank) add("rank", event.rank->value);
  if (event.reported_by) add("reported_by", event.reported_by->value);
  if (event.reason) {
    const Error error = to_error(*event.reason, event.session.job);
    if (error.rank()) add("rank", *error.rank());
    fields.push_back({"error", std::string(sluice::name(error.code()))});
    fields.push_back({"reason", explain(*event.reason)});
  }
  return fields;
}

}  // namespace sluice::aggregator
