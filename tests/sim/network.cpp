#include "tests/sim/network.hpp"

#include <algorithm>

#include "tests/sim/trace.hpp"

namespace sluice::sim {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

void Network::send(const Endpoint& from, const Endpoint& to, const Bytes& datagram) {
  ++packets_;
  if (trace_) trace("send", events_.now(), from, to, *datagram);
  const LinkModel& link = scenario_.link;
  if (events_.now() >= scenario_.faults_end) return carry(from, to, datagram, {});

  const bool lost = random_.chance(link.loss) || swallowed(from, to);
  int copies = lost ? 0 : 1;
  while (copies < 4 && random_.chance(link.duplicate)) ++copies;
  if (swallowed(from, to)) copies = 0;
  for (int i = 0; i < copies; ++i) {
    const bool late = random_.chance(link.late);
    const double share = late ? random_.unit() : 0;
    carry(from, to, datagram,
          Duration{static_cast<Duration::rep>(share * static_cast<double>(link.late_max.count()))});
  }
  if (random_.chance(link.ancient))
    events_.in(milliseconds(random_.between(20, 3000)), [=, this] { deliver(from, to, datagram); });
  if (random_.chance(link.garbage)) carry(from, to, damaged(datagram), {});
}

/// When a packet of this size has left a path that sends one after the other.
Time Network::departure(const Endpoint& from, const Endpoint& to, std::size_t size) {
  if (scenario_.link.bytes_per_us == 0) return events_.now();
  Time& free = busy_until_[(std::uint64_t{from.ipv4} << 32) | to.ipv4];
  const auto takes = Duration{
      static_cast<Duration::rep>(1000 * static_cast<double>(size) / scenario_.link.bytes_per_us)};
  free = std::max(free, events_.now()) + takes;
  return free;
}

void Network::carry(const Endpoint& from, const Endpoint& to, const Bytes& datagram,
                    Duration extra) {
  const Duration jitter{static_cast<Duration::rep>(
      static_cast<double>(scenario_.link.delay.count()) * random_.uniform(0.9, 1.1))};
  events_.at(departure(from, to, datagram->size()) + jitter + extra,
             [=, this] { deliver(from, to, datagram); });
}

void Network::deliver(const Endpoint& from, const Endpoint& to, const Bytes& datagram) {
  const auto found = handlers_.find(to.ipv4);
  if (found == handlers_.end()) return;
  if (trace_) trace("  recv", events_.now(), from, to, *datagram);
  const Handler handler = found->second;  // it may detach itself
  handler(from, datagram);
}

bool Network::swallowed(const Endpoint& from, const Endpoint& to) const {
  return std::any_of(blackouts_.begin(), blackouts_.end(), [&](const Hole& hole) {
    return events_.now() >= hole.from && events_.now() < hole.to &&
           hole.address == (hole.downstream ? to.ipv4 : from.ipv4);
  });
}

/// What a stranger could send who has seen a packet but knows no token, or a faulty wire. (Damage
/// that keeps tokens and lengths is UDP's checksum to find.)
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
