#include "tests/sim/recovery_watch.hpp"

#include <algorithm>
#include <string>

namespace sluice::sim {

void RecoveryWatch::on_send(const Endpoint& from, const Endpoint& to, const Packet& packet) {
  using wire::Kind;
  switch (packet.kind()) {
    case Kind::kWelcome:
      return on_welcome(from, packet);
    case Kind::kSync:
      return on_sync(to, packet);
    case Kind::kStatus:
      if (packet.as<wire::Status>().live != 0) on_live(from, packet);
      return;
    case Kind::kResult:
      return on_live(from, packet);
    case Kind::kFetch:
      ++coverage_["recovery.results fetched"];
      return;
    case Kind::kGive:
      ++coverage_["recovery.results given"];
      return;
    default:
      return;
  }
}

void RecoveryWatch::on_welcome(const Endpoint& from, const Packet& packet) {
  const auto& welcome = packet.as<wire::Welcome>();
  Epoch& epoch = epochs_[{from.ipv4, packet.job()}];
  if (epoch.id == welcome.epoch) return;
  epoch = {.id = welcome.epoch,
           .resumed = (welcome.flags & wire::kWelcomeResume) != 0,
           .history = welcome.history,
           .streams = {}};
  if (!epoch.resumed) return;
  ++coverage_["recovery.jobs resumed"];
  if (from.ipv4 > kStandbys) ++coverage_["recovery.standby took over"];
}

void RecoveryWatch::on_sync(const Endpoint& to, const Packet& packet) {
  const auto& sync = packet.as<wire::Sync>();
  const auto found = epochs_.find({to.ipv4, packet.job()});
  if (found == epochs_.end()) return;
  Stream& stream = found->second.streams[sync.member.stream];
  if (!stream.live)
    stream.syncs[sync.member.rank] = {sync.position, sync.op,
                                      (sync.flags & wire::kSyncRunning) != 0,
                                      (sync.flags & wire::kSyncFirst) != 0};
}

void RecoveryWatch::on_live(const Endpoint& from, const Packet& packet) {
  const auto found = epochs_.find({from.ipv4, packet.job()});
  if (found == epochs_.end() || !found->second.resumed) return;
  const auto stream = found->second.streams.find(packet.delivery().stream);
  if (stream == found->second.streams.end() || stream->second.live) return;
  stream->second.live = true;
  count(found->second, stream->second);
}

void RecoveryWatch::count(const Epoch& epoch, const Stream& stream) {
  ++coverage_["recovery.streams resynchronised"];
  const auto less = [](auto member) {
    return [member](const auto& a, const auto& b) { return a.second.*member < b.second.*member; };
  };
  const auto [low, high] =
      std::minmax_element(stream.syncs.begin(), stream.syncs.end(), less(&Sync::position));
  const auto [early, late] =
      std::minmax_element(stream.syncs.begin(), stream.syncs.end(), less(&Sync::op));
  const std::uint64_t spread = high->second.position - low->second.position;
  const std::string apart = spread < 4 ? std::to_string(spread) : "4 or more";
  ++coverage_["recovery.streams with positions " + apart + " apart"];
  if (spread == epoch.history) ++coverage_["recovery.streams with positions H apart"];
  if (early->second.op != late->second.op) ++coverage_["recovery.streams with ops apart"];
  if (high->second.running && !high->second.first)
    ++coverage_["recovery.streams in the middle of an op"];
}

void RecoveryWatch::on_kill(Address aggregator) {
  for (auto& [key, epoch] : epochs_) {
    if (key.first != aggregator || !epoch.resumed) continue;
    const bool under_way = epoch.streams.empty() ||
                           std::any_of(epoch.streams.begin(), epoch.streams.end(),
                                       [](const auto& stream) { return !stream.second.live; });
    coverage_["recovery.killed in a resynchronisation"] += under_way;
    epoch.resumed = false;
  }
}

}  // namespace sluice::sim
