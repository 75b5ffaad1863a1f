// libFuzzer target of the aggregator's engine. It serves an honest job, whose packets may be lost,
// late and repeated; beside it, attackers join other jobs with whatever settings, and what they say
// is edited, forged and sent from anywhere. The honest job must come to the right sums all the
// same, and an unauthenticated peer must get no more bytes than he sent.
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

constexpr std::uint32_t kHonestJob = 1;
constexpr std::uint32_t kFirstAttackerJob = 2;
constexpr std::size_t kAttackerJobs = 2;
constexpr std::size_t kAttackerRanks = 3;
constexpr std::uint64_t kSeed = 20;
constexpr Endpoint kUnauthenticatedPeer{.port_id = 9, .ipv4 = 9, .udp_port = 9};
constexpr std::size_t kBuffersMost = 1500;

aggregator::EngineConfig config_of(Input& input) {
  aggregator::EngineConfig config;
  config.streams = static_cast<std::uint16_t>(1 + input.below(4));
  config.streams_max = 16;
  config.history = static_cast<std::uint8_t>(2u << input.below(3));
  config.payload_bytes = 700;
  config.jobs_max = 3;
  config.buffers_max = kBuffersMost;
  config.liveness_timeout = milliseconds(2000);
  config.formation_timeout = milliseconds(3000);
  return config;
}

class Target {
 public:
  explicit Target(Input& input)
      : input_(input),
        world_(config_of(input), kSeed),
        honest_(world_, kHonestJob, static_cast<unsigned>(1 + input.below(3)), kSeed) {
    require(honest_.settle([&] { return honest_.joined(); }), "the honest job forms");
    attackers_.resize(kAttackerJobs * kAttackerRanks);
  }

  void run() {
    while (!input_.empty()) act();
    world_.sink.pool->dry = false;
    honest_.catch_up();
    require(honest_.settle([&] { return !honest_.busy(); }), "every honest op ends");
    require(!honest_.failed() || excused_, "the honest job fails only for a cause of its own");
    for (auto& caller : world_.callers) {
      caller->collect([](const auto&...) {});
      caller->check_returned();
    }
  }

 private:
  void act() {
    switch (input_.below(16)) {
      case 0:
      case 1:
        return world_.deliver_all();
      case 2:
      case 3:
        return on_flight([&](std::size_t i) { world_.deliver(i); });
      case 4:
        return on_flight([&](std::size_t i) { lose(i); });
      case 5:
        return on_flight([&](std::size_t i) { repeat(i); });
      case 6:
        return pass();
      case 7:
        honest_.submit(input_.below(honest_.ranks()));
        return;
      case 8:
        return honest_.collect();
      case 9:
        return puppet_joins();
      case 10:
        return puppet_calls();
      case 11:
      case 12:
        return puppet_forges();
      case 13:
        return unauthenticated_peer_sends();
      case 14:
        world_.sink.pool->dry = input_.one_in(4);
        return;
      default:
        return rarely();
    }
  }

  template <class F>
  void on_flight(F&& f) {
    if (!world_.flights.empty()) f(input_.below(world_.flights.size()));
  }
  void lose(std::size_t i) {
    world_.flights.erase(world_.flights.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void repeat(std::size_t i) {
    const Flight flight = world_.flights[i];
    world_.arrive(flight);
  }

  /// More silence than a rank may keep is a cause to fail.
  void pass() {
    const Duration step = pick_step(input_);
    passed_ += step;
    excused_ |= passed_ >= milliseconds(1000);
    world_.pass(step);
  }

  // -------------------------------------------------------------------------------- the attackers
  std::size_t pick_attacker() { return input_.below(attackers_.size()); }

  /// A new process takes the rank, with settings that the aggregator may not like.
  void puppet_joins() {
    const std::size_t which = pick_attacker();
    const auto job = static_cast<std::uint32_t>(kFirstAttackerJob + which / kAttackerRanks);
    const auto rank = static_cast<unsigned>(which % kAttackerRanks);
    worker::EngineConfig config = rank_config(job, rank, kAttackerRanks, kSeed + ++lives_);
    if (input_.one_in(4)) {
      config.ranks = input_.byte();
      config.streams = input_.byte();
      config.history = static_cast<std::uint8_t>(1u << input_.below(8));
      config.block_elements = input_.number<std::uint16_t>();
      config.payload_bytes = input_.number<std::uint16_t>();
    }
    std::erase_if(world_.callers,
                  [&](const auto& caller) { return caller.get() == attackers_[which]; });
    auto attacker =
        std::make_unique<Caller>(config, endpoint_of(job, rank), std::span(&kAggregator, 1));
    attackers_[which] = attacker.get();
    world_.add(std::move(attacker));
  }

  void puppet_calls() {
    Caller* attacker = attackers_[pick_attacker()];
    if (attacker == nullptr) return;
    if (input_.one_in(8)) {
      attacker->engine.leave(world_.now, attacker->sink);
    } else if (attacker->open() < 4) {
      attacker->submit(op_spec(input_.byte() % 4u), world_.now);
    }
    world_.pump();
    attacker->collect([](const auto&...) {});
  }

  /// Something that an attacker sent or got, edited; or what a member could say.
  void puppet_forges() {
    const std::size_t which = pick_attacker();
    const Caller* attacker = attackers_[which];
    if (attacker == nullptr) return;
    const auto heard = heard_by(*attacker);
    if (heard.empty()) return;
    const Flight& flight = world_.flights[heard[input_.below(heard.size())]];
    learn_from(*flight.datagram, known_);
    Packet packet;
    const bool valid = Packet::parse(*flight.datagram, packet) == DropReason::kNone;
    const bool member = valid && wire::is_upstream(packet.kind()) &&
                        packet.kind() != wire::Kind::kHello && packet.kind() != wire::Kind::kJoin;
    if (member && input_.one_in(2))
      send(attacker->self(), forge_upstream(input_, packet.member()));
    else
      send(attacker->self(), edited(input_, known_, *flight.datagram));
  }

  std::vector<std::size_t> heard_by(const Caller& attacker) const {
    std::vector<std::size_t> heard;
    for (std::size_t i = 0; i < world_.flights.size(); ++i)
      if (world_.flights[i].from == attacker.self() || world_.flights[i].to == attacker.self())
        heard.push_back(i);
    return heard;
  }

  /// The jobs of others, yes; but who takes part in the honest one is another target's subject.
  void send(const Endpoint& from, Datagram bytes) {
    const bool honest = peek_job(bytes) == kHonestJob;
    Packet packet;
    if (Packet::parse(bytes, packet) == DropReason::kNone && honest &&
        packet.kind() == wire::Kind::kJoin)
      return;
    world_.arrive({from, kAggregator, std::make_shared<Datagram>(std::move(bytes))});
  }

  // -------------------------------------------------------------------- unauthenticated peers
  /// Who knows nothing gets no more than he sent.
  void unauthenticated_peer_sends() {
    Datagram bytes;
    if (!world_.flights.empty() && input_.one_in(2)) {
      const Known nothing;
      bytes =
          edited(input_, nothing, *world_.flights[input_.below(world_.flights.size())].datagram);
      forget_token(bytes);
    } else {
      for (const std::uint8_t byte : input_.take(input_.byte())) bytes.push_back(std::byte{byte});
    }
    const std::size_t asked = bytes.size();
    const std::size_t before = world_.flights.size();
    send(kUnauthenticatedPeer, std::move(bytes));
    for (std::size_t i = before; i < world_.flights.size(); ++i)
      if (world_.flights[i].to == kUnauthenticatedPeer)
        require(world_.flights[i].datagram->size() <= asked,
                "no answer is longer than the question");
  }

  static void forget_token(Datagram& bytes) {
    if (bytes.size() < sizeof(wire::MemberHeader)) return;
    auto& member = *reinterpret_cast<wire::MemberHeader*>(bytes.data());
    member.token = ~std::uint64_t{member.token};
  }

  // --------------------------------------------------------------------------------- now and then
  void rarely() {
    switch (input_.below(8)) {
      case 0:
        world_.engine->on_disconnect(endpoint_of(kFirstAttackerJob, 0).port_id, world_.now,
                                     world_.sink);
        break;
      case 1:
        world_.engine->excuse_pause(pick_step(input_));
        break;
      case 2:
        excused_ = true;
        world_.engine->on_disconnect(honest_.rank(0).self().port_id, world_.now, world_.sink);
        break;
      case 3:
        excused_ |= restarted_;  // it may not have joined again yet
        world_.engine->close(true);
        break;
      case 4:
        excused_ = true;
        world_.engine->retire(world_.now, world_.sink);
        break;
      case 5:
        excused_ = true;
        honest_.rank(0).engine.leave(world_.now, honest_.rank(0).sink);
        break;
      case 6:
        excused_ |= lives_ != 0;  // other jobs may take all room first
        restarted_ = true;
        world_.restart();
        break;
      default:
        break;
    }
    world_.pump();
  }

  Input& input_;
  World world_;
  HonestJob honest_;
  std::vector<Caller*> attackers_;  // by job and rank; null: the rank never joined
  std::uint64_t lives_ = 0;
  Duration passed_{};
  bool restarted_ = false;
  bool excused_ = false;
  Known known_;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::Input input(data, size);
  sluice::fuzz::Target(input).run();
  return 0;
}
