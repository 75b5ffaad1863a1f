// One rank of a job and its caller: gives ops to a worker engine, and judges how each one ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tests/sim/keyed_call.hpp"
#include "tests/sim/tensors.hpp"
#include "tests/unit/engine_parts.hpp"
#include "worker/engine/engine.hpp"

namespace sluice::fuzz {

using sim::require;

class Caller {
 public:
  using Engine = worker::Engine;
  static constexpr std::size_t kPairBytes = std::size_t{1} << 20;

  Caller(const worker::EngineConfig& config, const Endpoint& self,
         std::span<const Endpoint> aggregators)
      : engine(config, aggregators), self_(self), rank_(config.rank.value), ranks_(config.ranks) {}

  void submit(const sim::OpSpec& spec, Time now) {
    Op op{.spec = spec, .member = engine.state() == Engine::State::kActive};
    op.spec.number = submitted_;
    if (sim::is_keyed(spec)) return submit_pairs(std::move(op), now);
    if (op.member) op.block_elements = engine.block_elements(spec.type, spec.block_elements);
    op.tensor = sim::make_tensor(spec, rank_, ranks_, op.block_elements);
    if (!op.tensor.in_place) op.output.assign(op.tensor.data.size() + kGuard, kUntouched);
    worker::OpRequest request;
    request.collective = spec.collective;
    request.type = spec.type;
    request.reduction = spec.reduction;
    request.element_count = spec.element_count;
    request.block_elements = spec.block_elements;
    request.tag = spec.tag;
    request.encoding = spec.encoding;
    request.rounding_seed = spec.rounding_seed;
    request.input = op.tensor.data.data();
    request.output = op.tensor.in_place ? op.tensor.data.data() : op.output.data();
    request.nonzero_blocks = op.tensor.bitmap;
    const bool fresh = open_.emplace(submitted_, std::move(op)).second;  // moves no tensor's bytes
    require(fresh && engine.submit(request, now, sink) == submitted_, "ops in call order");
    ++submitted_;
  }

  /// Takes what has ended. `judge(op, block elements, output, pairs)` sees each op that ended well.
  template <class Judge>
  void collect(Judge&& judge) {
    for (const worker::Completion& completion : engine.take_completions()) {
      const auto found = open_.find(completion.op);
      require(found != open_.end(), "each op ends once");
      Op op = std::move(found->second);
      open_.erase(found);
      const bool may_be_too_many = sim::is_keyed(op.spec) && op.pair_bytes_most < kPairBytes;
      require(!completion.error || !op.member || engine.over() || may_be_too_many,
              "an op fails with its job only");
      check_memory(op);
      if (!completion.error) judge(op.spec, op.block_elements, op.sums(), op.pair_sums);
      ++(completion.error ? failed_ : succeeded_);
      hand_back(std::move(op));
    }
  }

  /// What the caller got back is its own: nobody has written there since.
  void check_returned() const {
    for (const auto& memory : returned_)
      require(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == kReused; }),
              "memory is written to after its op has ended");
  }

  const Endpoint& self() const { return self_; }
  unsigned rank() const { return rank_; }
  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t succeeded() const { return succeeded_; }
  std::size_t open() const { return open_.size(); }

  Engine engine;
  parts::Sink sink;
  std::size_t pair_bytes_most = kPairBytes;  ///< of a keyed op's sums; less: it may fail by itself

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kUntouched{0x5a};
  static constexpr std::byte kReused{0x66};

  struct Op {
    sim::OpSpec spec;
    bool member = false;  ///< when it was submitted
    std::uint32_t block_elements = 1;
    sim::Tensor tensor{};
    std::vector<std::byte> output{};  ///< with a guard behind it; empty: in place
    sim::Pairs pairs{};               ///< of a keyed op, in place of a tensor
    worker::KeyedSums pair_sums{};
    std::size_t pair_bytes_most = 0;

    std::span<const std::byte> sums() const {
      return tensor.in_place ? tensor.data : std::span(output).first(tensor.data.size());
    }
  };

  void submit_pairs(Op op, Time now) {
    op.pairs = sim::make_pairs(op.spec, rank_);
    op.pair_bytes_most = pair_bytes_most;
    const auto [at, fresh] = open_.emplace(submitted_, std::move(op));
    Op& open = at->second;
    const worker::OpRequest request =
        sim::request_of(open.spec, open.pairs, open.pair_sums, pair_bytes_most);
    require(fresh && engine.submit(request, now, sink) == submitted_, "ops in call order");
    ++submitted_;
  }

  void check_memory(const Op& op) const {
    if (sim::is_keyed(op.spec)) {
      const sim::Pairs before = sim::make_pairs(op.spec, rank_);
      require(before.keys == op.pairs.keys && before.rows == op.pairs.rows,
              "the pairs are not written to");
      const auto keys = sim::in_order(op.pair_sums).keys;
      require(keys.size() <= op.pair_bytes_most / sizeof(std::uint64_t) &&
                  std::is_sorted(keys.begin(), keys.end()),
              "sums have keys in order, and no more than may be");
      return;
    }
    if (op.tensor.in_place) return;
    require(std::all_of(op.output.end() - kGuard, op.output.end(),
                        [](std::byte b) { return b == kUntouched; }),
            "nothing is written behind the output");
    require(sim::make_tensor(op.spec, rank_, ranks_, op.block_elements).data == op.tensor.data,
            "the input is not written to");
  }

  void hand_back(Op op) {
    std::fill(op.tensor.bitmap.begin(), op.tensor.bitmap.end(), ~std::uint64_t{0});
    std::fill(op.pairs.keys.begin(), op.pairs.keys.end(), ~std::uint64_t{0});
    for (std::vector<std::byte>* memory : {&op.tensor.data, &op.output, &op.pairs.rows}) {
      std::fill(memory->begin(), memory->end(), kReused);
      returned_.push_back(std::move(*memory));
    }
  }

  const Endpoint self_;
  const unsigned rank_;
  const unsigned ranks_;
  std::map<OpNumber, Op> open_;
  std::vector<std::vector<std::byte>> returned_;
  std::uint64_t submitted_ = 0;
  std::uint64_t succeeded_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace sluice::fuzz
