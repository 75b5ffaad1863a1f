#include "tests/sim/host.hpp"

#include <algorithm>
#include <utility>

#include "tests/sim/trace.hpp"

namespace sluice::sim {
namespace {

Clock draw_clock(const Scenario& s, Address address) {
  Random r(derive(s.seed, 0x1000000u + address));
  const auto offset = static_cast<double>(s.clock_offset_max.count()) * r.unit();
  return {Duration{static_cast<Duration::rep>(offset)}, s.clock_drift_max * r.uniform(-1, 1)};
}

}  // namespace

Host::Host(World& world, Process& process, Endpoint self)
    : world_(world),
      process_(process),
      sink_(world.network, self),
      clock_(draw_clock(world.scenario, self.ipv4)) {}

void Host::start() {
  ++incarnation_;
  running_ = true;
  paused_ = false;
  wake_at_ = kNever;
  world_.network.attach(self().ipv4, [this](const Arrival& arrival) { arrive(arrival); });
}

void Host::stop() {
  ++incarnation_;
  running_ = false;
  ring_.clear();
  put_off_.clear();
  world_.network.detach(self().ipv4);
}

void Host::arrive(const Arrival& arrival) {
  if (!paused_) return take(arrival);
  if (ring_.size() < world_.scenario.receive_ring)
    ring_.push_back(arrival);
  else
    ++ring_overflows_;
}

void Host::take(const Arrival& arrival) {
  Buffer buffer = sink_.received(arrival.bytes);
  if (!buffer) return;
  sink_.begin_turn();
  process_.on_packet(arrival, std::move(buffer));
}

void Host::wake(Time deadline) {
  if (deadline == kNever) return;
  const Time at = std::max(clock_.real(deadline), world_.events.now() + kTurn);
  if (at >= wake_at_) return;
  wake_at_ = at;
  world_.events.at(at, [this, incarnation = incarnation_] {
    if (incarnation != incarnation_ || paused_ || world_.events.now() < wake_at_) return;
    wake_at_ = kNever;
    sink_.begin_turn();
    process_.on_turn();
  });
}

void Host::later(Duration delay, std::function<void()> what) {
  world_.events.in(delay, [this, incarnation = incarnation_, what = std::move(what)] {
    if (incarnation != incarnation_) return;
    if (paused_) return put_off_.push_back(what);
    what();
  });
}

void Host::pause(Duration length) {
  if (!running_ || paused_) return;
  trace_note(world_.tracing, world_.events.now(), "%x is paused", self().ipv4);
  ++pauses_;
  paused_ = true;
  world_.events.in(length, [this, incarnation = incarnation_, since = world_.events.now()] {
    resume(incarnation, since);
  });
}

void Host::resume(std::uint64_t incarnation, Time since) {
  if (incarnation != incarnation_) return;
  trace_note(world_.tracing, world_.events.now(), "%x goes on", self().ipv4);
  paused_ = false;
  wake_at_ = kNever;
  const auto packets = std::exchange(ring_, {});
  const auto calls = std::exchange(put_off_, {});
  process_.on_pause_over(now() - clock_.local(since), [&] {
    for (const Arrival& arrival : packets)
      if (incarnation == incarnation_) take(arrival);
  });
  for (const auto& call : calls)
    if (incarnation == incarnation_) call();
}

void Host::add_to(Coverage& coverage) const {
  coverage["host.pauses"] += pauses_;
  coverage["host.receive ring full"] += ring_overflows_;
  coverage["host.transmit ring full"] += sink_.full();
}

}  // namespace sluice::sim
