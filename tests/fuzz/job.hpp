// A job of honest ranks: whatever is lost, late or repeated, and whatever unauthenticated peers
// send, each of its ops ends, and with the right sums or an error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "tests/fuzz/world.hpp"

namespace sluice::fuzz {

/// Of pairs: keys of all chunks, of some, of few; sums that are all delivered, or some, or none.
inline void make_keyed(sim::Random& random, sim::OpSpec& spec) {
  spec.collective = wire::Collective::kSparseAllReduce;
  spec.row_elements = static_cast<std::uint16_t>(random.pick<std::uint64_t>({1, 1, 3, 7}));
  const std::uint64_t keys = std::max<std::uint64_t>(1, spec.element_count / spec.row_elements);
  spec.key_bound = random.pick<std::uint64_t>({keys, 50 * keys, ~std::uint64_t{0} - 2});
  spec.threshold = random.pick({0.0, 0.0, 1.0, 50.0, std::numeric_limits<double>::infinity()});
}

/// An op of a few rounds, as all ranks call it.
inline sim::OpSpec op_spec(std::uint64_t seed) {
  sim::Random random(seed);
  sim::OpSpec spec;
  if (random.chance(0.1)) spec.collective = wire::Collective::kBarrier;
  spec.type = static_cast<ElementType>(random.between(1, 9));
  spec.reduction = static_cast<Reduction>(random.between(1, is_float(spec.type) ? 5 : 8));
  if (spec.collective == wire::Collective::kAllReduce) spec.element_count = random.below(600);
  if (random.chance(0.3)) spec.block_elements = static_cast<std::uint16_t>(random.between(1, 40));
  spec.tag = random.below(3);
  spec.seed = random.next();
  spec.density = random.pick({-1.0, 0.1, 0.5, 1.0});
  if (spec.collective == wire::Collective::kAllReduce && random.chance(0.25))
    make_keyed(random, spec);
  sim::draw_encoding(random, spec);
  return spec;
}

inline Endpoint endpoint_of(std::uint32_t job, unsigned rank) {
  return {.port_id = static_cast<std::uint16_t>(16 * job + rank),
          .ipv4 = (job << 16) + rank + 2,
          .udp_port = 50000};
}

/// What a rank of such a job is set to.
inline worker::EngineConfig rank_config(std::uint32_t job, unsigned rank, unsigned ranks,
                                        std::uint64_t seed) {
  using std::chrono::milliseconds;
  worker::EngineConfig config;
  config.job = job;
  config.rank = Rank{static_cast<std::uint16_t>(rank)};
  config.ranks = static_cast<std::uint16_t>(ranks);
  config.block_elements = 4;
  config.payload_bytes = 600;
  config.rto = {.min = milliseconds(5), .max = milliseconds(50), .initial = milliseconds(10)};
  config.unique = ids_from(sim::derive(seed, job * 100 + rank));
  return config;
}

class HonestJob {
 public:
  /// Its ranks keep the secret, and authenticate every packet, or encrypt, too, if there is one.
  HonestJob(World& world, std::uint32_t job, unsigned ranks, std::uint64_t seed,
            const std::shared_ptr<const Secret>& secret = nullptr)
      : world_(world), seed_(seed) {
    for (unsigned rank = 0; rank < ranks; ++rank) {
      worker::EngineConfig config = rank_config(job, rank, ranks, seed);
      config.secret = secret;
      config.authenticate_packets = secret != nullptr;
      config.encrypt_packets = secret != nullptr && seed % 2 == 0;
      config.integrity = secret != nullptr;
      callers_.push_back(world.callers.size());
      world.add(
          std::make_unique<Caller>(config, endpoint_of(job, rank), std::span(&kAggregator, 1)));
    }
  }

  std::size_t ranks() const { return callers_.size(); }
  Caller& rank(std::size_t r) { return *world_.callers[callers_[r]]; }

  void submit(std::size_t r) {
    constexpr std::size_t kOpenMost = 3;
    const bool member = rank(r).engine.state() == Caller::Engine::State::kActive;
    if (!member || rank(r).open() >= kOpenMost) return;
    rank(r).submit(op_spec(sim::derive(seed_, rank(r).submitted())), world_.now);
    world_.pump();
  }

  void collect() {
    for (std::size_t r = 0; r < ranks(); ++r)
      rank(r).collect([&](const sim::OpSpec& spec, std::uint32_t block_elements,
                          std::span<const std::byte> sums, const worker::KeyedSums& keyed) {
        const auto of = static_cast<unsigned>(ranks());
        if (sim::is_keyed(spec)) {
          const unsigned bits = sim::chunk_bits_of(spec, rank(r).engine.session());
          const auto wanted = sim::sum_pairs(spec, of, bits);
          const auto pairs = sim::in_order(keyed);
          require(pairs.keys == wanted.keys && sim::same(pairs.rows, wanted.rows, spec.type),
                  "sums of pairs are right");
          require(pairs.rejected == wanted.rejected, "sums that are not delivered are counted");
          return;
        }
        const auto wanted = sim::reduce(spec, of, block_elements);
        require(sim::same(sums, wanted.data, spec.type), "sums are right");
      });
  }

  /// True if the ranks are members, or have failed.
  bool joined() {
    for (std::size_t r = 0; r < ranks(); ++r)
      if (rank(r).engine.state() == Caller::Engine::State::kJoining) return false;
    return true;
  }
  bool failed() {
    for (std::size_t r = 0; r < ranks(); ++r)
      if (rank(r).engine.state() == Caller::Engine::State::kFailed) return true;
    return false;
  }
  bool busy() {
    for (std::size_t r = 0; r < ranks(); ++r)
      if (rank(r).open() != 0) return true;
    return false;
  }
  /// All ranks call what any has called.
  void catch_up() {
    std::uint64_t most = 0;
    for (std::size_t r = 0; r < ranks(); ++r) most = std::max(most, rank(r).submitted());
    for (std::size_t r = 0; r < ranks(); ++r)
      while (rank(r).submitted() < most && rank(r).open() < 64)
        rank(r).submit(op_spec(sim::derive(seed_, rank(r).submitted())), world_.now);
    world_.pump();
  }

  /// Without further faults: true if `done` comes true within bounds.
  template <class Done>
  bool settle(Done&& done) {
    using std::chrono::milliseconds;
    constexpr int kStepsMost = 2000;  // 50 s
    for (int step = 0; step < kStepsMost; ++step) {
      world_.deliver_all();
      collect();
      if (done()) return true;
      world_.pass(milliseconds(25));
    }
    return false;
  }

 private:
  World& world_;
  const std::uint64_t seed_;
  std::vector<std::size_t> callers_;
};

}  // namespace sluice::fuzz
