#include "tests/sim/network.hpp"

#include <algorithm>

#include "common/base/multicast_address.hpp"
#include "tests/sim/trace.hpp"

namespace sluice::sim {

namespace {

constexpr std::size_t kCongestedQueueBytes = 6000;

bool is_shard(Address address) {
  return address < 2 * kStandbys;
}

unsigned shard_at(Address address) {
  return (address & ~kStandbys) - 1;
}

}  // namespace

Endpoint Network::outside(Endpoint lane) const {
  if (!is_shard(lane.ipv4)) return lane;
  const unsigned number = shard_at(lane.ipv4) / scenario_.aggregators();
  lane.ipv4 -= number * scenario_.aggregators();
  lane.udp_port = static_cast<std::uint16_t>(kAggregatorPort + number);
  lane.lane = static_cast<std::uint8_t>(number);
  return lane;
}

Endpoint Network::inside(Endpoint known) const {
  if (!is_shard(known.ipv4)) return known;
  known.ipv4 += (known.udp_port - kAggregatorPort) * scenario_.aggregators();
  known.udp_port = kAggregatorPort;
  known.lane = 0;
  return known;
}

void Network::send(const Endpoint& from, const Endpoint& known, const Bytes& datagram) {
  const Endpoint to = inside(known);
  ++counts_.packets;
  if (on_send) on_send(from, to, datagram);
  if (trace_) trace("send", events_.now(), from, to, *datagram);
  if (!is_multicast(to.ipv4)) return send_to_one(from, to, datagram, std::nullopt);
  ++counts_.to_groups;
  std::optional<Time> sent = events_.now();
  if (scenario_.link.host_bytes_per_us > 0) sent = leaves_link(true, from.ipv4, datagram->size());
  for (const Endpoint& each : receivers(to)) send_to_one(from, each, datagram, sent);
}

/// The members of the group, or the only receiver.
std::vector<Endpoint> Network::receivers(const Endpoint& to) const {
  std::vector<Endpoint> all;
  if (!is_multicast(to.ipv4)) all.push_back(to);
  for (const auto& [host, groups] : groups_) {
    if (!groups.contains(to.ipv4)) continue;
    all.push_back(to);
    all.back().ipv4 = host;
  }
  return all;
}

void Network::send_to_one(const Endpoint& from, const Endpoint& to, const Bytes& datagram,
                          std::optional<Time> sent) {
  if (loses && loses(from, to, datagram)) {
    ++counts_.lost;
    return;
  }
  if (sent && cut_of(from.ipv4, to.ipv4, true) != nullptr) {
    ++counts_.outside_group;
    return;
  }
  if (!faulty()) return carry(from, to, datagram, {}, sent);

  const LinkModel& link = scenario_.link;
  const bool lost = random_.chance(link.loss);
  counts_.lost += lost;
  int copies = lost ? 0 : 1;
  while (copies < 4 && random_.chance(link.duplicate)) ++copies, ++counts_.duplicated;
  const Cut* cut = cut_of(from.ipv4, to.ipv4);
  if (cut != nullptr && cut->bytes_per_us == 0) {
    counts_.cut += static_cast<std::uint64_t>(copies);
    copies = 0;
  }
  for (int i = 0; i < copies; ++i) {
    const bool late = random_.chance(share_of_late(to.ipv4));
    counts_.late += late;
    const double share = late ? random_.unit() : 0;
    carry(from, to, datagram,
          Duration{static_cast<Duration::rep>(share * static_cast<double>(link.late_max.count()))},
          sent);
  }
  if (random_.chance(link.ancient)) {
    ++counts_.ancient;
    const Duration age{static_cast<Duration::rep>(random_.between(20'000'000, kAncient.count()))};
    put(from, to, datagram, events_.now() + age, false);
  }
  if (random_.chance(link.garbage)) {
    ++counts_.garbage;
    put(from, to, damaged(datagram), events_.now() + link.delay, true);
  }
}

void Network::inject(const Endpoint& from, const Endpoint& to, const Bytes& datagram,
                     bool damaged) {
  if (trace_) trace("inject", events_.now(), from, to, *datagram);
  for (const Endpoint& each : receivers(to))
    put(from, each, datagram, events_.now() + scenario_.link.delay, damaged);
}

/// When a packet of this size has left a path that sends packets one after the other. Returns false
/// if it does not, as the queue before a congested path is full.
bool Network::departs(const Endpoint& from, const Endpoint& to, std::size_t size, Time& at) {
  at = events_.now();
  double rate = scenario_.link.bytes_per_us;
  const Cut* cut = cut_of(from.ipv4, to.ipv4);
  const bool congested = cut != nullptr && cut->bytes_per_us > 0;
  if (congested) rate = cut->bytes_per_us;
  if (rate == 0) return true;
  Time& free = busy_until_[(std::uint64_t{from.ipv4} << 32) | to.ipv4];
  const auto takes = Duration{static_cast<Duration::rep>(1000 * static_cast<double>(size) / rate)};
  const Duration queued = std::max(free, at) - at;
  if (congested) {
    ++counts_.congested;
    if (static_cast<double>(queued.count()) * rate / 1000 > kCongestedQueueBytes) {
      ++counts_.overflowed;
      return false;
    }
  }
  free = at = at + queued + takes;
  return true;
}

/// When a packet that reaches a host's link now has passed it; nothing if the queue is full.
std::optional<Time> Network::leaves_link(bool up, Address host, std::size_t size) {
  constexpr std::size_t kHeaders = 42;
  const LinkModel& link = scenario_.link;
  Time& free = busy_until_[(up ? std::uint64_t{1} << 32 : 0) | host];
  const Time begin = std::max(free, events_.now());
  const double waiting =
      static_cast<double>((begin - events_.now()).count()) * link.host_bytes_per_us / 1000;
  if (!up && link.host_queue_bytes != 0 && waiting > static_cast<double>(link.host_queue_bytes)) {
    ++counts_.overflowed;
    return std::nullopt;
  }
  const double takes = 1000 * static_cast<double>(size + kHeaders) / link.host_bytes_per_us;
  return free = begin + Duration{static_cast<Duration::rep>(takes)};
}

void Network::carry(const Endpoint& from, const Endpoint& to, Bytes datagram, Duration extra,
                    std::optional<Time> sent) {
  if (scenario_.link.host_bytes_per_us > 0) {
    if (!sent) sent = leaves_link(true, from.ipv4, datagram->size());
    events_.at(*sent, [=, this] {
      if (const auto at = leaves_link(false, to.ipv4, datagram->size()))
        put(from, to, datagram, *at + scenario_.link.delay, false);
    });
    return;
  }
  Time at;
  if (!departs(from, to, datagram->size(), at)) return;
  const Duration jitter{static_cast<Duration::rep>(
      static_cast<double>(scenario_.link.delay.count()) * random_.uniform(0.9, 1.1))};
  const bool flip = faulty() && random_.chance(scenario_.link.bit_flips);
  if (flip) datagram = with_flipped_bits(datagram);
  counts_.flipped += flip;
  put(from, to, datagram, at + jitter + extra, flip);
}

void Network::put(const Endpoint& from, const Endpoint& to, const Bytes& datagram, Time at,
                  bool damaged) {
  events_.at(at, [=, this] { deliver(to, {from, datagram, damaged}); });
}

void Network::deliver(const Endpoint& to, const Arrival& arrival) {
  const auto found = handlers_.find(to.mac == kHostileMac ? kHostileAddress : to.ipv4);
  if (found == handlers_.end()) return;
  if (trace_) trace("  recv", events_.now(), arrival.from, to, *arrival.bytes);
  const Handler handler = found->second;  // it may detach itself
  Endpoint from = outside(arrival.from);
  if (!is_shard(to.ipv4)) from.local_udp_port = to.udp_port;
  handler({from, arrival.bytes, arrival.damaged});
}

double Network::share_of_late(Address to) const {
  constexpr double kLateShare = 0.8;
  const LinkModel& link = scenario_.link;
  if (link.late == 0 || scenario_.late_ranks.empty() || is_shard(to)) return link.late;
  const Rank rank{static_cast<std::uint16_t>(rank_at(to))};
  return scenario_.late_ranks.contains(rank) ? kLateShare : link.late;
}

const Cut* Network::cut_of(Address from, Address to, bool to_group) const {
  const bool downstream = is_shard(from);
  const unsigned shard = shard_at(downstream ? from : to);
  const Address worker = downstream ? to : from;
  for (const Cut& cut : scenario_.cuts) {
    if (cut.of_group != to_group) continue;
    if (cut.downstream != downstream || (cut.shards >> shard & 1) == 0) continue;
    if (events_.now() < cut.from || events_.now() >= cut.to) continue;
    if (worker >> 16 != scenario_.jobs[cut.job].id || (worker & kIntruders) != 0) continue;
    if (cut.ranks.contains(Rank{static_cast<std::uint16_t>(rank_at(worker))})) return &cut;
  }
  return nullptr;
}

/// So few bits that a CRC of 32 bits must notice.
Bytes Network::with_flipped_bits(const Bytes& datagram) {
  auto bytes = *datagram;
  for (std::uint64_t i = random_.between(1, 3); i > 0; --i) {
    const std::uint64_t bit = random_.below(8 * bytes.size());
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
  if (bytes == *datagram) bytes[0] ^= std::byte{1};  // one bit, flipped twice
  return std::make_shared<std::vector<std::byte>>(std::move(bytes));
}

void Network::add_to(Coverage& coverage) const {
  const auto add = [&](const char* name, std::uint64_t n) {
    coverage["network." + std::string(name)] += n;
  };
  add("packets", counts_.packets);
  add("to groups", counts_.to_groups);
  add("not received in a group", counts_.outside_group);
  add("lost", counts_.lost);
  add("duplicated", counts_.duplicated);
  add("late", counts_.late);
  add("ancient", counts_.ancient);
  add("garbage", counts_.garbage);
  add("bits flipped", counts_.flipped);
  add("partitioned", counts_.cut);
  add("congested", counts_.congested);
  add("queue overflowed", counts_.overflowed);
}

/// What an unauthenticated peer could send that has seen a packet but knows no token, or what a
/// faulty wire does. (UDP's checksum must find damage that keeps tokens and lengths.)
Bytes Network::damaged(const Bytes& datagram) {
  auto bytes = *datagram;
  const auto scramble = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < std::min(end, bytes.size()); ++i)
      bytes[i] = static_cast<std::byte>(random_.next());
  };
  switch (random_.below(6)) {
    case 0:  // noise
      bytes.resize(random_.below(200));
      scramble(0, bytes.size());
      break;
    case 1:  // cut short
      bytes.resize(random_.below(bytes.size()));
      break;
    case 2:  // with a tail
      bytes.resize(bytes.size() + random_.between(1, 40));
      break;
    case 3:  // one field of the header
      bytes[random_.below(8)] ^= static_cast<std::byte>(0x40);
      break;
    case 4:  // another job's
      scramble(8, 10);
      [[fallthrough]];
    default:  // without the token, nonce, epoch: any bits after them
      scramble(16, 32);
      if (bytes.size() > 32 && random_.chance(0.5)) {
        const std::size_t at = random_.between(32, bytes.size() - 1);
        scramble(at, at + 4);
      }
  }
  return std::make_shared<std::vector<std::byte>>(std::move(bytes));
}

}  // namespace sluice::sim
