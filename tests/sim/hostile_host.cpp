#include "tests/sim/hostile_host.hpp"

#include <iterator>
#include <string>
#include <utility>

#include "common/base/multicast_address.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/protection.hpp"

namespace sluice::sim {
namespace {

constexpr std::size_t kRemembered = 16;   // packets of each kind
constexpr std::uint64_t kCollected = 20;  // refusals, one after the other
constexpr int kFloodPackets = 200;

template <class T>
T& as(std::vector<std::byte>& bytes) {
  return *reinterpret_cast<T*>(bytes.data());
}

template <class T>
Bytes datagram_of(const T& packet) {
  const auto bytes = wire::bytes_of(packet);
  return std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
}

/// Corrects everything in the packet that needs no key, and removes the trailer, which it cannot
/// make.
Bytes unproven(std::vector<std::byte> bytes) {
  auto& header = as<wire::Header>(bytes);
  if ((header.flags & wire::kAuthenticated) != 0) {
    header.flags = 0;
    bytes.resize(bytes.size() - wire::trailer_bytes(wire::Kind{header.kind}));
    as<wire::Header>(bytes).length = static_cast<std::uint16_t>(bytes.size());
  }
  as<wire::Header>(bytes).integrity = 0;
  return std::make_shared<std::vector<std::byte>>(std::move(bytes));
}

}  // namespace

HostileHost::HostileHost(World& world)
    : world_(world),
      random_(derive(world.scenario.seed, 3)),
      self_{.mac = kHostileMac, .ipv4 = kHostileAddress, .udp_port = 6666, .off_machine = true} {
  world_.network.attach(self_.ipv4, [this](const Arrival& arrival) { on_answer(arrival); });
  world_.events.in(std::chrono::milliseconds(1), [this] { act(); });
}

void HostileHost::overhear(const Endpoint& from, const Endpoint& to, const Bytes& datagram) {
  const auto hears = [&](const Endpoint& end) {
    if (is_multicast(end.ipv4)) return true;
    const bool worker = end.ipv4 >> 16 != 0;
    return worker &&
           world_.scenario.overheard.contains(Rank{static_cast<std::uint16_t>(rank_at(end.ipv4))});
  };
  Packet packet;
  if (!hears(from) && !hears(to)) return;
  if (Packet::parse(*datagram, packet) != DropReason::kNone) return;
  // A rank that no aggregator of the shard has answered yet accepts, without proof, that it does
  // not share a secret: see Security in docs/protocol.md.
  const bool up = wire::is_upstream(packet.kind());
  const std::tuple path(packet.job(), (up ? from : to).ipv4, (up ? to : from).ipv4 & ~kStandbys);
  if (packet.kind() == wire::Kind::kJoin) challenged_.insert(path);
  if (challenged_.count(path) == 0 && !is_multicast(to.ipv4)) return;
  if (packet.kind() == wire::Kind::kKeepAlive) refuse(from, to, packet);
  remember(packet.kind(), {from, to, datagram});
}

void HostileHost::remember(wire::Kind kind, Overheard packet) {
  auto& known = overheard_[kind];
  if (known.size() < kRemembered)
    known.push_back(std::move(packet));
  else
    known[random_.below(kRemembered)] = std::move(packet);
}

const HostileHost::Overheard* HostileHost::any(wire::Kind kind) {
  const auto found = overheard_.find(kind);
  if (found == overheard_.end()) return nullptr;
  return &found->second[random_.below(found->second.size())];
}

const HostileHost::Overheard* HostileHost::any() {
  if (overheard_.empty()) return nullptr;
  auto at = overheard_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(overheard_.size())));
  return any(at->first);
}

/// Continues until all is over: if a replay stalls a job as long as it is repeated, that must show.
void HostileHost::act() {
  const Duration pause{static_cast<Duration::rep>(random_.between(200'000, 20'000'000))};
  world_.events.in(pause, [this] { act(); });
  const Overheard* const chosen = any();
  if (chosen == nullptr) return;
  const Overheard packet = *chosen;
  const auto what = static_cast<Act>(random_.below(static_cast<std::uint64_t>(Act::kCount)));
  ++acts_[static_cast<std::size_t>(what)];
  switch (what) {
    case Act::kReplay:
      return send(packet.from, packet.to, packet.datagram);
    case Act::kReplayElsewhere:
      return replay_elsewhere(packet);
    case Act::kRedirect:
      return redirect(packet);
    case Act::kAsk:
      return ask_about_token();
    case Act::kCollect:
      return collect_refusals();
    case Act::kDeny:
      return deny_the_secret();
    case Act::kFlood:
      return flood();
    default:
      return edit(packet);
  }
}

/// Sends with the CRC32C that is required if there is no tag; it needs no key. `changed`: no rank
/// has sent the packet like this.
void HostileHost::send(const Endpoint& from, const Endpoint& to, Bytes datagram, bool changed) {
  const auto& header = as<wire::Header>(*datagram);
  const bool has_tag = (header.flags & wire::kAuthenticated) != 0 &&
                       !wire::uses_handshake_key(wire::Kind{header.kind});
  if (world_.scenario.integrity && !has_tag) {
    auto bytes = *datagram;
    as<wire::Header>(bytes).integrity = integrity_of(bytes);
    datagram = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  }
  world_.network.inject(from, to, datagram, changed);
}

/// Sends to another aggregator what was meant for one, so that it can pass the answer to the rank.
void HostileHost::replay_elsewhere(const Overheard& packet) {
  if (!wire::is_upstream(wire::Kind{as<wire::Header>(*packet.datagram).kind})) return;
  Endpoint to = packet.to;
  const auto shard = static_cast<unsigned>(random_.below(world_.scenario.shards));
  to.ipv4 = address_of_shard(shard, !world_.scenario.standbys.empty() && random_.chance(0.5));
  Endpoint from = self_;
  if (random_.chance(0.5)) from = packet.from, from.mac = self_.mac;
  send(from, to, packet.datagram);
}

/// A host that takes the sender's place by its own Ethernet address gets what is sent there.
void HostileHost::redirect(const Overheard& packet) {
  const Overheard* const join = any(wire::Kind::kJoin);
  const Overheard& chosen = join != nullptr && random_.chance(0.7) ? *join : packet;
  Endpoint from = chosen.from;
  from.mac = self_.mac;
  send(from, chosen.to, chosen.datagram);
}

/// Sends packets with a member's token that no member has sent: the answer may be signed.
void HostileHost::ask_about_token() {
  const Overheard* const packet = any(wire::Kind::kKeepAlive);
  if (packet == nullptr) return;
  auto bytes = *unproven(*packet->datagram);
  auto& member = as<wire::KeepAlive>(bytes).member;
  if (random_.chance(0.7)) member.rank = static_cast<std::uint16_t>(random_.below(8));
  if (random_.chance(0.2)) member.header.job = static_cast<std::uint32_t>(random_.below(16));
  Endpoint to = packet->to;
  if (random_.chance(0.3))
    to.ipv4 = address_of_shard(static_cast<unsigned>(random_.below(world_.scenario.shards)), false);
  send(self_, to, std::make_shared<std::vector<std::byte>>(bytes), true);
}

/// An aggregator refuses every token that it does not know, and signs the number of the KEEPALIVE,
/// even of one that the rank is going to send to another aggregator.
void HostileHost::collect_refusals() {
  const Overheard* const packet = any(wire::Kind::kKeepAlive);
  if (packet == nullptr) return;
  Endpoint to = packet->to;
  if (!world_.scenario.standbys.empty()) to.ipv4 ^= kStandbys;
  for (std::uint64_t ahead = 1; ahead <= kCollected; ++ahead) {
    auto bytes = *unproven(*packet->datagram);
    auto& keep_alive = as<wire::KeepAlive>(bytes);
    keep_alive.number = keep_alive.number + ahead;
    send(self_, to, std::make_shared<std::vector<std::byte>>(bytes), true);
  }
}

/// Answers a KEEPALIVE before its aggregator can.
void HostileHost::refuse(const Endpoint& from, const Endpoint& to, const Packet& keep_alive) {
  const std::uint64_t number = keep_alive.as<wire::KeepAlive>().number;
  const auto found = refusals_.find({keep_alive.member().token, number});
  if (found == refusals_.end()) return;
  ++refused_;
  send(to, from, found->second);
}

/// Says without proof what an aggregator may say to a rank that does not share the job's secret, or
/// its version.
void HostileHost::deny_the_secret() {
  const Overheard* const hello = any(wire::Kind::kHello);
  if (hello == nullptr) return;
  auto abort = wire::make<wire::Abort>(as<wire::Hello>(*hello->datagram).header.job);
  abort.nonce = as<wire::Hello>(*hello->datagram).nonce;
  abort.reason = static_cast<std::uint16_t>(wire::AbortReason::kNotAuthenticated);
  for (int i = 0; i < 4; ++i) send(hello->to, hello->from, datagram_of(abort));
  auto versions = wire::make<wire::Versions>(abort.header.job);
  versions.nonce = abort.nonce;
  versions.lowest = versions.highest = versions.header.version = wire::kVersion + 1;
  for (int i = 0; i < 4; ++i) send(hello->to, hello->from, datagram_of(versions));
}

/// Sends many handshakes that prove nothing, in the name of a rank, which gets the answers.
void HostileHost::flood() {
  const Overheard* const hello = any(wire::Kind::kHello);
  if (hello == nullptr) return;
  for (int i = 0; i < kFloodPackets; ++i) send(hello->from, hello->to, unproven(*hello->datagram));
}

void HostileHost::edit(const Overheard& packet) {
  auto bytes = *packet.datagram;
  for (std::uint64_t edits = random_.between(1, 3); edits > 0; --edits) {
    const std::size_t at = random_.between(sizeof(wire::Header), bytes.size() - 1);
    bytes[at] = static_cast<std::byte>(random_.next());
  }
  const bool changed = bytes != *packet.datagram;
  as<wire::Header>(bytes).integrity = 0;
  Bytes edited = std::make_shared<std::vector<std::byte>>(bytes);
  const bool proven = random_.chance(0.5);
  send(packet.from, packet.to, proven ? edited : unproven(std::move(bytes)), changed || !proven);
}

/// Sends answers that this host got to those whom they may disturb, now and again later.
void HostileHost::on_answer(const Arrival& arrival) {
  ++answers_;
  Packet packet;
  if (Packet::parse(*arrival.bytes, packet) != DropReason::kNone) return;
  // To forward a CHALLENGE would make this host the path between both: see Security in
  // docs/protocol.md.
  if (packet.kind() == wire::Kind::kChallenge) return;
  if (packet.kind() == wire::Kind::kRefused) {
    const auto& refused = packet.as<wire::Refused>();
    refusals_.insert_or_assign({refused.token, refused.number}, arrival.bytes);
  }
  const Overheard* const about = any(wire::Kind::kKeepAlive);
  if (about == nullptr) return;
  const Overheard brought{about->to, about->from, arrival.bytes};
  remember(packet.kind(), brought);
  send(brought.from, brought.to, brought.datagram);
}

void HostileHost::add_to(Coverage& coverage) const {
  static constexpr const char* kNames[] = {"replayed", "replayed elsewhere", "redirected",
                                           "asked",    "collected refusals", "denied the secret",
                                           "flooded",  "sent edited"};
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    coverage[std::string("hostile host.") + kNames[i]] += acts_[i];
  coverage["hostile host.was answered"] += answers_;
  coverage["hostile host.refused"] += refused_;
}

}  // namespace sluice::sim
