// libFuzzer target of joining. An attacker who sees all packets, but does not know the job's
// secret, replays them, edits them, sends them from other addresses and tries to join himself. The
// honest ranks must form their job or learn that it failed, and nobody else may get a token.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tests/fuzz/forge.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/job.hpp"

namespace sluice::fuzz {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kJob = 1;
constexpr std::uint64_t kSeed = 40;
const auto kSecret = std::make_shared<const Secret>("known to the honest ranks only");
constexpr Endpoint kAttacker{.port_id = 9, .ipv4 = 9, .udp_port = 9};

aggregator::EngineConfig aggregator_config() {
  aggregator::EngineConfig config;
  config.streams = 2;
  config.history = 4;
  config.payload_bytes = 700;
  config.liveness_timeout = milliseconds(2000);
  config.formation_timeout = milliseconds(3000);
  config.integrity = true;
  config.authenticate_packets = true;
  config.secret = [](std::uint32_t) { return kSecret; };
  return config;
}

class Target {
 public:
  explicit Target(Input& input)
      : input_(input),
        world_(aggregator_config(), kSeed),
        job_(world_, kJob, static_cast<unsigned>(1 + input.below(3)), kSeed, kSecret) {
    world_.on_send = [this](const Flight& flight) { see(flight); };
  }

  void run() {
    while (!input_.empty()) act();
    require(job_.settle([&] { return job_.joined(); }), "every rank joins, or learns why not");
    job_.submit(0);
    job_.catch_up();
    require(job_.settle([&] { return !job_.busy(); }), "every op ends");
  }

 private:
  void act() {
    switch (input_.below(10)) {
      case 0:
      case 1:
        return world_.deliver_all();
      case 2:
        return on_flight([&](std::size_t i) { world_.deliver(i); });
      case 3:
        return on_flight([&](std::size_t i) {
          world_.flights.erase(world_.flights.begin() + static_cast<std::ptrdiff_t>(i));
        });
      case 4:
        return world_.pass(pick_step(input_));
      case 5:
        return inject(*seen_at(input_.below(seen_.size())));
      case 6:
      case 7:
        return inject(edited(input_, known_, *seen_at(input_.below(seen_.size()))));
      case 8:
        return attacker_joins();
      default:
        job_.submit(input_.below(job_.ranks()));
        return job_.collect();
    }
  }

  template <class F>
  void on_flight(F&& f) {
    if (!world_.flights.empty()) f(input_.below(world_.flights.size()));
  }

  /// The attacker sees what is sent to others.
  void see(const Flight& flight) {
    constexpr std::size_t kSeenMost = 64;
    Packet packet;
    const DropReason drop = Packet::parse(*flight.datagram, packet);
    require(drop == DropReason::kNone, "what is sent is well-formed");
    require(packet.kind() != wire::Kind::kWelcome || is_honest(flight.to),
            "only the job's ranks get a token");
    if (flight.to == kAttacker || seen_.size() == kSeenMost) return;
    seen_.push_back(flight.datagram);
    learn_from(*flight.datagram, known_);
  }
  bool is_honest(const Endpoint& endpoint) {
    for (std::size_t r = 0; r < job_.ranks(); ++r)
      if (job_.rank(r).self() == endpoint) return true;
    return false;
  }
  const Datagram* seen_at(std::size_t i) const {
    static const Datagram kNothing;
    return seen_.empty() ? &kNothing : seen_[i].get();
  }

  /// To the aggregator, in anybody's name, or to a rank in the aggregator's.
  void inject(Datagram bytes) {
    const auto datagram = std::make_shared<Datagram>(std::move(bytes));
    const Endpoint rank = job_.rank(input_.below(job_.ranks())).self();
    switch (input_.below(3)) {
      case 0:
        return world_.arrive({kAttacker, kAggregator, datagram});
      case 1:
        return world_.arrive({rank, kAggregator, datagram});
      default:
        return world_.arrive({kAggregator, rank, datagram});
    }
  }

  /// With the library, but without the secret.
  void attacker_joins() {
    if (world_.callers.size() > job_.ranks()) world_.callers.pop_back();
    auto config = rank_config(kJob, static_cast<unsigned>(input_.below(4)),
                              static_cast<unsigned>(job_.ranks()), kSeed + ++attempts_);
    world_.add(std::make_unique<Caller>(config, kAttacker, std::span(&kAggregator, 1)));
  }

  Input& input_;
  World world_;
  HonestJob job_;
  std::vector<sim::Bytes> seen_;
  Known known_;
  std::uint64_t attempts_ = 0;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::Input input(data, size);
  sluice::fuzz::Target(input).run();
  return 0;
}
