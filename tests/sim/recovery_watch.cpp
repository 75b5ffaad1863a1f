#include "tests/sim/recovery_watch.hpp"

#include <algorithm>
#include <string>
#include <utility>

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
    case Kind::kData:
    case Kind::kKeyValueData:
      return on_data(to, packet);
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
           .stream_count = welcome.streams,
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
  if (!stream.live) stream.applied[sync.member.rank] = sync.applied;
}

void RecoveryWatch::on_data(const Endpoint& to, const Packet& packet) {
  const auto& data = packet.as<wire::Data>();
  const auto found = epochs_.find({to.ipv4, packet.job()});
  if (found == epochs_.end() || !found->second.resumed || packet.descriptor() == nullptr) return;
  Stream& stream = found->second.streams[data.member.stream];
  if (packet.is_keyed()) {
    if (packet.as<wire::KeyValueData>().horizon != 0 &&
        !std::exchange(stream.resumed_amidst_op, true))
      ++coverage_["recovery.keyed streams in the middle of an op"];
    return;
  }
  const std::uint32_t firsts = found->second.stream_count * packet.shape().columns;
  for (const wire::Column& column : packet.columns()) {
    if (column.index == kNoBlock.value || column.index < firsts) continue;
    if (!std::exchange(stream.resumed_amidst_op, true))
      ++coverage_["recovery.streams in the middle of an op"];
  }
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
  const auto [low, high] =
      std::minmax_element(stream.applied.begin(), stream.applied.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::uint64_t spread = high->second - low->second;
  const std::string apart = spread < 4 ? std::to_string(spread) : "4 or more";
  ++coverage_["recovery.streams with positions " + apart + " apart"];
  if (spread == epoch.history) ++coverage_["recovery.streams with positions H apart"];
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
