// libFuzzer target of the host level. The other ranks of the host write whatever they like into the
// memory that they share, at any time: this rank reads nothing beyond what is there, and every op
// ends.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "tests/fuzz/input.hpp"
#include "tests/sim/bug.hpp"
#include "worker/host/engine/engine.hpp"

namespace sluice::fuzz {
namespace {

using worker::OpRequest;
using worker::host::Board;
using worker::host::Call;
using worker::host::Copied;
using worker::host::Engine;
using worker::host::LocalRank;
using worker::host::Place;
using worker::host::Transfer;
using worker::host::Word;

constexpr std::size_t kSlotBytes = 256;
constexpr std::uint64_t kCalls = 2;
constexpr std::uint64_t kSlots = 3;
constexpr std::uint64_t kBlocks = 5;
constexpr std::uint64_t kMostElements = 500;

/// What the input says is what peers have told. Memory is as long as it must be, to the byte.
class Hostile final : public Board {
 public:
  Hostile(Input& input, LocalRank ranks, LocalRank self) : input_(input), self_(self) {
    slots_.resize(ranks * kSlots);
  }

  void set(Word word, std::uint64_t value) override {
    std::uint64_t& own = words_[static_cast<std::size_t>(word)];
    sim::require(value > own, "a word does not rise");
    own = value;
  }
  std::uint64_t word(LocalRank of, Word word) const override {
    const std::uint64_t own = words_[static_cast<std::size_t>(word)];
    if (of == self_) return own;
    if (word == Word::kOver && all_have_left_) return 1;
    switch (input_.below(8)) {
      case 0:
        return 0;
      case 1:
        return input_.number<std::uint64_t>();
      case 2:
        return word == Word::kOver ? input_.below(4) : own + input_.below(8);
      default:
        return word == Word::kOver ? 0 : own + 1;
    }
  }
  void call(OpNumber op, const Call& call) override {
    sim::require(op < words_[static_cast<std::size_t>(Word::kFinished)] + kCalls,
                 "a call is kept until this rank has finished its op");
    own_calls_[op] = call;
  }
  bool has_called(LocalRank rank, OpNumber op) const override {
    return rank == self_ ? own_calls_.contains(op) : !input_.one_in(4);
  }
  Call called(LocalRank rank, OpNumber op) const override {
    Call call = own_calls_.at(op);
    if (rank == self_) return call;
    call.input = place();
    call.output = place();
    call.tells_blocks = input_.byte();
    if (input_.one_in(16)) scribble(call);
    return call;
  }
  void tell_farewell(const AbortInfo&) override {}
  AbortInfo farewell(LocalRank) const override {
    AbortInfo why;
    scribble(why);
    return why;
  }
  std::byte* bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) override {
    if (rank != self_ && (input_.one_in(8) || bytes > kMostElements * 8)) return nullptr;
    return regions_[{rank, place.offset, bytes}].of(bytes);
  }
  std::byte* slot(LocalRank of, std::uint64_t piece) override {
    return slots_[of * kSlots + piece % kSlots].of(kSlotBytes);
  }
  Copied read(LocalRank from, std::span<const Transfer> transfers) override {
    sim::require(from != self_, "a rank reads its own tensors where they are");
    for (const Transfer& transfer : transfers)
      std::memset(transfer.here, input_.byte(), transfer.bytes);
    return copied();
  }
  Copied write(LocalRank to, std::span<const Transfer> transfers) override {
    sim::require(to != self_, "a rank writes its own tensors where they are");
    for (const Transfer& transfer : transfers)
      written_.assign(transfer.here, transfer.here + transfer.bytes);
    return copied();
  }
  void tell_blocks(std::uint64_t, std::uint64_t) override {}
  std::uint64_t blocks(LocalRank, std::uint64_t) const override { return word_of_bits(); }
  void tell_sums(std::uint64_t, std::uint64_t) override {}
  std::uint64_t sums(LocalRank, std::uint64_t) const override { return word_of_bits(); }
  void tell_count(LocalRank, std::uint64_t) override {}
  std::uint64_t count(LocalRank, LocalRank) const override { return word_of_bits(); }
  void tell_negative_zeros(LocalRank, std::uint64_t) override {}
  std::uint64_t negative_zeros(LocalRank, LocalRank) const override { return word_of_bits(); }
  void part() override {}

  void all_leave() { all_have_left_ = true; }

 private:
  /// From the heap, where the sanitizer sees each access beyond it.
  class Memory {
   public:
    std::byte* of(std::size_t bytes) {
      if (!bytes_) {
        bytes_ = std::make_unique<std::byte[]>(bytes);
        for (std::size_t i = 0; i < bytes; ++i) bytes_[i] = std::byte(i * 37);
      }
      return bytes_.get();
    }

   private:
    std::unique_ptr<std::byte[]> bytes_;
  };

  Place place() const {
    return {input_.pick(std::array<std::uint64_t, 4>{0, 1, 2, Place::kInProcess}),
            input_.number<std::uint8_t>()};
  }
  Copied copied() const {
    return input_.one_in(16) ? input_.pick(std::array{Copied::kNotMapped, Copied::kProcessGone})
                             : Copied::kAll;
  }
  std::uint64_t word_of_bits() const {
    return input_.one_in(4) ? input_.number<std::uint64_t>() : ~std::uint64_t{0};
  }
  template <class T>
  void scribble(T& object) const {
    std::array<std::byte, sizeof(T)> bytes;
    std::memcpy(bytes.data(), &object, sizeof(T));
    for (std::size_t changes = input_.below(8); changes > 0; --changes)
      bytes[input_.below(sizeof(T))] = std::byte{input_.byte()};
    std::memcpy(&object, bytes.data(), sizeof(T));
  }

  Input& input_;
  const LocalRank self_;
  bool all_have_left_ = false;
  std::array<std::uint64_t, worker::host::kWords> words_{};
  std::map<OpNumber, Call> own_calls_;
  std::map<std::tuple<LocalRank, std::uint64_t, std::uint64_t>, Memory> regions_;
  std::vector<Memory> slots_;
  std::vector<std::byte> written_;
};

class Target {
 public:
  explicit Target(Input& input)
      : input_(input),
        ranks_(static_cast<LocalRank>(1 + input.below(4))),
        self_(static_cast<LocalRank>(input.below(ranks_))),
        leave_(input.one_in(2)),
        board_(input, ranks_, self_),
        engine_(config(), board_) {}

  void run() {
    while (!input_.empty() && engine_.state() != Engine::State::kOver) act();
    if (leave_) board_.all_leave();
    for (LocalRank peer = 0; peer < ranks_; ++peer)
      if (peer != self_) engine_.lost(peer, now_);
    for (int turn = 0; engine_.state() != Engine::State::kOver; ++turn) {
      sim::require(turn < 100, "an engine ends when all its peers are gone");
      if (engine_.pending_ops() == 0) engine_.leave(now_);
      now_ = after(now_, std::chrono::milliseconds(100));
      engine_.turn(now_);
    }
    ended_ += engine_.take_completions().size();
    sim::require(ended_ == tensors_.size(), "every op ends, once");
  }

 private:
  worker::host::Config config() {
    worker::host::Config config;
    config.alias = {.job = "1"};
    for (LocalRank r = 0; r < ranks_; ++r) config.ranks.push_back(Rank{r});
    config.self = self_;
    config.sizes = {.calls = kCalls, .slots = kSlots, .blocks = kBlocks, .slot_bytes = kSlotBytes};
    config.least_piece_bytes = 64;
    config.least_remote_bytes = input_.one_in(2) ? 0 : config.kNotReached;
    config.block_elements = [](ElementType, std::uint16_t) { return 8u; };
    config.place_of = [this](std::span<const std::byte>) -> std::optional<Place> {
      if (input_.one_in(2)) return std::nullopt;
      return Place{1, 0};
    };
    return config;
  }

  void act() {
    switch (input_.below(8)) {
      case 0:
        return submit();
      case 1:
        now_ = after(now_, std::chrono::milliseconds(input_.below(50)));
        return;
      case 2:
        if (input_.one_in(16)) engine_.lost(static_cast<LocalRank>(input_.below(ranks_)), now_);
        return;
      default:
        engine_.turn(now_);
        ended_ += engine_.take_completions().size();
    }
  }

  void submit() {
    OpRequest request;
    request.type = static_cast<ElementType>(1 + input_.below(9));
    request.element_count = input_.below(kMostElements);
    if (request.type == ElementType::kFloat32)
      request.encoding =
          input_.pick(std::array{Encoding::kNone, Encoding::kInt8, Encoding::kFloat16});
    auto& tensor = tensors_.emplace_back(
        std::make_unique<std::byte[]>(request.element_count * element_bytes(request.type)));
    request.input = request.output = tensor.get();
    if (input_.one_in(2)) {
      auto& found = found_.emplace_back(std::make_unique<worker::FoundBlocks>());
      found->nonzero.resize((request.element_count + 7) / 8 / 64 + 1);
      request.found_blocks = found.get();
    }
    if (input_.one_in(3))
      request.timeout = worker::OpTimeout::of(now_, std::chrono::milliseconds(20));
    engine_.submit(request, {});
  }

  Input& input_;
  const LocalRank ranks_;
  const LocalRank self_;
  const bool leave_;  // at the end, as they say, in place of dying
  Time now_{};
  Hostile board_;
  Engine engine_;
  std::vector<std::unique_ptr<std::byte[]>> tensors_;
  std::vector<std::unique_ptr<worker::FoundBlocks>> found_;
  std::size_t ended_ = 0;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::Input input(data, size);
  sluice::fuzz::Target(input).run();
  return 0;
}
