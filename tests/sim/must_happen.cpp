#include "tests/sim/must_happen.hpp"

namespace sluice::sim {
namespace {

constexpr const char* kMustHappen[] = {
    "network.lost",
    "network.duplicated",
    "network.late",
    "network.ancient",
    "network.garbage",
    "network.bits flipped",
    "network.partitioned",
    "network.congested",
    "network.queue overflowed",
    "host.pauses",
    "host.receive ring full",
    "host.transmit ring full",
    "aggregators.killed",
    "jobs too silent to live",
    "trust.no secret",
    "trust.secret",
    "trust.packets authenticated",
    "trust.packets encrypted",
    "theme.mixed",
    "theme.crashes",
    "theme.lost",
    "theme.standby",
    "theme.slow rank",
    "theme.many ranks",
    "theme.full links",
    "theme.incast",
    "worker.windows_narrowed",
    "fault.silent death",
    "fault.disconnect",
    "fault.op mismatch",
    "fault.early leave",
    "fault.aborting leave",
    "fault.duplicate rank",
    "fault.wrong world size",
    "fault.rank beyond world",
    "fault.join mismatch",
    "fault.rejoin",
    "fault.shut down",
    "recovery.jobs resumed",
    "recovery.standby took over",
    "recovery.streams resynchronised",
    "recovery.streams in the middle of an op",
    "recovery.streams with positions 0 apart",
    "recovery.streams with positions 1 apart",
    "recovery.streams with positions 2 apart",
    "recovery.streams with positions 3 apart",
    "recovery.streams with positions 4 or more apart",
    "recovery.streams with positions H apart",
    "recovery.killed in a resynchronisation",
    "recovery.keyed streams in the middle of an op",
    "ops.keyed",
    "ops.keyed half",
    "ops.keyed bfloat16",
    "ops.keyed int8",
    "ops.keyed int4",
    "ops.half",
    "ops.bfloat16",
    "ops.int8",
    "ops.int4",
    "ops.rounded stochastically",
    "shared memory.jobs formed",
    "shared memory.jobs resumed",
    "shared memory.slots torn",
    "shared memory.tensors",
    "aggregator.contributions_held",
    "aggregator.results_repeated",
    "aggregator.results_withheld",
    "aggregator.rounds_stalled",
    "aggregator.rounds_awaiting_ack",
    "aggregator.drop.duplicate",
    "aggregator.drop.stale_round",
    "aggregator.drop.unknown_token",
    "aggregator.drop.wrong_incarnation",
    "aggregator.drop.stale_join",
    "worker.results_early",
    "worker.rounds_replayed",
    "worker.results_read_late",
    "worker.acks_sent",
    "worker.probes_sent",
    "worker.rejoins",
    "worker.drop.stale_round",
    "worker.drop.wrong_epoch",
    "worker.drop.no_buffer",
};

}  // namespace

std::vector<std::string> missing_of(const Coverage& coverage) {
  std::vector<std::string> missing;
  for (const char* name : kMustHappen) {
    const auto found = coverage.find(name);
    if (found == coverage.end() || found->second == 0) missing.push_back(name);
  }
  return missing;
}

}  // namespace sluice::sim
