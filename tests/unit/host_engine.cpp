// The ranks of one host in this process: engines over mapped memory, one by one or each in a
// thread of its own. What may happen between them is the simulator's matter (tests/sim/host_level).
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/memory/descriptor.hpp"
#include "tests/unit/catch.hpp"
#include "worker/host/engine/engine.hpp"
#include "worker/host/engine/host_op_queue.hpp"
#include "worker/host/keyed_sum.hpp"
#include "worker/host/mapped_board.hpp"

namespace host_engine_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace sluice::worker::host;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr std::uint64_t kRegion = 9;

/// The memory of all ranks, and what each has of it.
class Ranks {
 public:
  explicit Ranks(LocalRank count, std::size_t region_bytes = 1 << 20,
                 std::uint64_t least_remote_bytes = host::Config::kNotReached)
      : least_remote_bytes_(least_remote_bytes) {
    sizes.calls = 4;
    sizes.slots = 2;
    for (LocalRank r = 0; r < count; ++r) {
      memory_.push_back({pages(MappedBoard::published_bytes(sizes)), pages(sizes.slots_bytes())});
      events.push_back(eventfd(0, EFD_NONBLOCK));
      regions.push_back(pages(region_bytes));
    }
    for (LocalRank r = 0; r < count; ++r) {
      boards.push_back(std::make_unique<MappedBoard>(
          sizes, memory_, r,
          MappedBoard::Calls{.find_region =
                                 [this](LocalRank rank, std::uint64_t region) {
                                   return region == kRegion ? regions[rank]
                                                            : std::span<std::byte>();
                                 },
                             .process_of = [this](LocalRank) { return process; },
                             .wake = [this](LocalRank peer) { eventfd_write(events[peer], 1); },
                             .part = [this] { ++parted; }}));
      engines.push_back(std::make_unique<Engine>(config(r, count), *boards.back()));
    }
  }
  ~Ranks() {
    for (const int event : events) close(event);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  std::span<float> tensor(LocalRank rank, std::size_t elements) const {
    return {reinterpret_cast<float*>(regions[rank].data()), elements};
  }

  /// All turns of all ranks, until none has anything to do.
  void turn(Time now = {}) {
    for (bool any = true; any;) {
      any = false;
      for (auto& engine : engines) any = engine->turn(now) || any;
    }
  }

  BoardSizes sizes;
  std::vector<std::span<std::byte>> regions;
  std::vector<int> events;
  std::vector<std::unique_ptr<MappedBoard>> boards;
  std::vector<std::unique_ptr<Engine>> engines;
  std::atomic<unsigned> parted{0};
  /// Of all ranks: this one, as each of them sees it.
  const memory::Descriptor life{static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))};
  ProcessMemory process{getpid(), life.get()};

 private:
  host::Config config(LocalRank rank, LocalRank count) {
    host::Config config;
    config.alias = {.job = "7"};
    for (LocalRank r = 0; r < count; ++r)  // the job has others between them
      config.ranks.push_back(Rank{static_cast<std::uint16_t>(10 * r)});
    config.self = rank;
    config.sizes = sizes;
    config.least_remote_bytes = least_remote_bytes_;
    config.block_elements = [](ElementType, std::uint16_t wanted) {
      return wanted != 0 ? wanted : 256u;
    };
    config.place_of = [this, rank](std::span<const std::byte> tensor) -> std::optional<Place> {
      const std::span<std::byte> mine = regions[rank];
      if (tensor.data() < mine.data() || tensor.data() >= mine.data() + mine.size())
        return std::nullopt;
      return Place{kRegion, static_cast<std::uint64_t>(tensor.data() - mine.data())};
    };
    return config;
  }

  std::span<std::byte> pages(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    bytes = (bytes + kPage - 1) / kPage * kPage;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes));
    std::memset(memory, 0, bytes);
    owned_.emplace_back(memory);
    return {memory, bytes};
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const std::uint64_t least_remote_bytes_;
  std::vector<std::unique_ptr<std::byte, Free>> owned_;
  std::vector<RankMemory> memory_;
};

OpRequest sum_in_place(std::span<float> tensor) {
  OpRequest request;
  request.element_count = tensor.size();
  request.input = reinterpret_cast<const std::byte*>(tensor.data());
  request.output = reinterpret_cast<std::byte*>(tensor.data());
  return request;
}

std::string error_of(Engine& engine) {
  for (const Completion& done : engine.take_completions())
    if (done.error) return done.error->what();
  return "";
}

}  // namespace

TEST_CASE("A rank that is alone on its host has its own tensor as the sum") {
  Ranks ranks(1);
  const auto tensor = ranks.tensor(0, 10'000);
  std::fill(tensor.begin(), tensor.end(), 3.0F);
  ranks.engines[0]->submit(sum_in_place(tensor), {});
  ranks.turn();
  CHECK(ranks.engines[0]->take_completions().size() == 1);
  CHECK(std::count(tensor.begin(), tensor.end(), 3.0F) == 10'000);
}

TEST_CASE("Ranks that disagree are told in what, by their numbers in the job") {
  Ranks ranks(2);
  ranks.engines[0]->submit(sum_in_place(ranks.tensor(0, 1000)), {});
  ranks.engines[1]->submit(sum_in_place(ranks.tensor(1, 900)), {});
  ranks.turn();
  for (auto& engine : ranks.engines)
    CHECK(error_of(*engine) ==
          "job 7: ranks call different collectives: rank 10 has element count 900, rank 0 has "
          "1000 (op 0)");
  CHECK(ranks.parted == 0);
}

TEST_CASE("Ranks that cut an op in other blocks disagree") {
  Ranks ranks(2);
  for (LocalRank r = 0; r < 2; ++r) {
    OpRequest request = sum_in_place(ranks.tensor(r, 8192));
    request.block_elements = r == 0 ? 256 : 300;
    ranks.engines[r]->submit(request, {});
  }
  ranks.turn();
  for (auto& engine : ranks.engines)
    CHECK_THAT(error_of(*engine), Contains("rank 10 has block elements 300, rank 0 has 256"));
}

TEST_CASE("An op after leaving ends with an error") {
  Ranks ranks(2);
  ranks.engines[0]->leave(Time{});
  ranks.engines[0]->submit(sum_in_place(ranks.tensor(0, 1000)), {});
  CHECK(error_of(*ranks.engines[0]) == "job 7: this rank has left");
  ranks.engines[1]->submit(sum_in_place(ranks.tensor(1, 1000)), {});
  ranks.turn();
  CHECK_THAT(error_of(*ranks.engines[1]), Contains("rank 0 left the job"));
}

TEST_CASE("A small product has its factors where the caller's bitmap has them") {
  Ranks ranks(3);
  const std::array<std::uint64_t, 1> bitmap = {1};
  std::array<std::array<float, 2>, 3> tensors = {{{1e30F, 2}, {0, 0}, {1e30F, 3}}};
  for (LocalRank r = 0; r < 3; ++r) {
    OpRequest request = sum_in_place(tensors[r]);
    request.reduction = Reduction::kProduct;
    request.nonzero_blocks = bitmap;
    ranks.engines[r]->submit(request, {});
  }
  ranks.turn();
  for (const auto& tensor : tensors) CHECK(tensor[0] == 0);  // not infinity times zero
}

TEST_CASE("Of a small op that is wanted in part, no more is summed, and blocks are of that part") {
  // One piece holds 64 blocks. The tensor has more, so that their bits would be taken for others'.
  constexpr std::uint64_t kElements = 100;
  const ElementRange part{70, 100};
  Ranks ranks(2);
  const std::array<std::uint64_t, 2> bitmap = {0, ~std::uint64_t{0}};
  std::array<std::vector<std::int8_t>, 2> tensors = {std::vector<std::int8_t>(kElements, 2),
                                                     std::vector<std::int8_t>(kElements, 3)};
  for (LocalRank r = 0; r < 2; ++r) {
    OpRequest request;
    request.type = ElementType::kInt8;
    request.reduction = Reduction::kProduct;
    request.element_count = kElements;
    request.block_elements = 1;
    request.nonzero_blocks = bitmap;
    request.wanted = {part};
    request.input = reinterpret_cast<const std::byte*>(tensors[r].data());
    request.output = reinterpret_cast<std::byte*>(tensors[r].data() + part.begin);
    ranks.engines[r]->submit(request, {2, {.held = std::nullopt, .wanted = std::vector{part}}});
  }
  ranks.turn();
  for (LocalRank r = 0; r < 2; ++r) {
    const std::vector<Completion> done = ranks.engines[r]->take_completions();
    REQUIRE(done.size() == 1);
    CHECK(done[0].statistics.blocks_sent == part.end - part.begin);
    for (std::uint64_t i = 0; i < kElements; ++i)
      CHECK(tensors[r][i] == (i >= part.begin ? 6 : 2 + r));
  }
}

TEST_CASE("An op tells for whom it waits, and its time-out names him") {
  Ranks ranks(3);
  OpRequest request = sum_in_place(ranks.tensor(0, 1000));
  request.timeout = OpTimeout::of(Time{}, 5ms);
  ranks.engines[0]->submit(request, {});
  ranks.engines[2]->submit(sum_in_place(ranks.tensor(2, 1000)), {});
  ranks.turn();
  CHECK(ranks.engines[0]->awaited().size() == 1);
  CHECK(ranks.engines[0]->awaited().contains(Rank{10}));
  CHECK(ranks.engines[0]->next_deadline() == Time{} + 5ms);
  ranks.turn(Time{} + 5ms);
  const std::string why = "job 7: op 0 was not done on rank 0 within 5 ms; it waited for rank 10";
  CHECK(error_of(*ranks.engines[0]) == why);
  CHECK(error_of(*ranks.engines[2]) == why);
}

TEST_CASE("Each op that waits behind a sum of pairs has its own time-out") {
  Ranks ranks(2);
  Session session;
  session.ranks = 2;
  session.streams = 1;
  session.payload_bytes = 1472;
  const JobLabel label{.job = "7"};
  HostOpQueue queue(*ranks.engines[0], label, Rank{0}, 2);
  OpRequest pairs;
  KeyedSums sums;
  pairs.collective = wire::Collective::kSparseAllReduce;
  pairs.keyed = {.key_bound = 100, .row_elements = 1, .result_bytes = 1000, .sums = &sums};
  for (int op = 0; op < 2; ++op)
    queue.submit(
        HostOpQueue::call_of(std::make_unique<KeyedSum>(
            pairs, session, KeyedRanks{.all = {Rank{0}, Rank{10}}, .ranges = 2, .of_job = 2})),
        Time{});
  queue.submit({.request = sum_in_place(ranks.tensor(0, 1000))}, Time{});
  queue.set_timeout(2, OpTimeout::of(Time{}, 5ms));
  queue.turn(Time{} + 4ms);
  CHECK(ranks.engines[0]->state() == Engine::State::kActive);
  queue.turn(Time{} + 5ms);
  ranks.turn(Time{} + 5ms);
  queue.turn(Time{} + 5ms);
  const std::vector<Completion> done = queue.take_completions();
  REQUIRE(done.size() == 3);
  CHECK(done[2].error->what() ==
        std::string("job 7: op 2 was not done on rank 0 within 5 ms; it waited for rank 10"));
}

TEST_CASE("A failure waits until peers reach no tensor any more, for a while, and parts then") {
  Ranks ranks(3);
  for (LocalRank r = 0; r < 2; ++r)
    ranks.engines[r]->submit(sum_in_place(ranks.tensor(r, 1000)), {});
  ranks.engines[0]->lost(2, Time{});
  CHECK_FALSE(ranks.engines[0]->turn(Time{}));  // rank 10 is stopped
  CHECK(ranks.engines[0]->take_completions().empty());
  CHECK(ranks.engines[0]->next_deadline() == Time{} + 200ms);
  CHECK(ranks.engines[0]->turn(Time{} + 200ms));
  CHECK(error_of(*ranks.engines[0]) == "job 7: rank 20 is lost: its process has ended");
  CHECK(ranks.parted == 1);
  ranks.engines[1]->turn(Time{} + 300ms);  // and goes on: rank 0 has ended
  CHECK(ranks.engines[1]->state() == Engine::State::kEnding);
  ranks.engines[1]->lost(2, Time{} + 300ms);
  CHECK(ranks.engines[1]->turn(Time{} + 300ms));
  CHECK(error_of(*ranks.engines[1]) == "job 7: rank 20 is lost: its process has ended");
  CHECK(ranks.parted == 1);
}

TEST_CASE("A tensor in a region that a peer does not have ends the job") {
  Ranks ranks(2, 64 << 10);
  ranks.engines[0]->submit(sum_in_place(ranks.tensor(0, 16 << 10)), {});
  ranks.engines[1]->submit(sum_in_place(ranks.tensor(1, 16 << 10)), {});
  ranks.regions[1] = ranks.regions[1].first(32 << 10);
  ranks.turn();
  CHECK(error_of(*ranks.engines[0]) ==
        "job 7: rank 10 is lost: the memory that it shares cannot be read any more");
}

TEST_CASE("A rank that frees its tensor while peers sum it is named") {
  Ranks ranks(3, 64 << 10, 0);
  constexpr std::size_t kElements = 64 << 10;
  std::array<std::vector<float>, 3> tensors;
  for (LocalRank r = 0; r < 2; ++r) {
    tensors[r].resize(kElements, 1.0F);
    ranks.engines[r]->submit(sum_in_place(tensors[r]), {});
  }
  void* const memory = mmap(nullptr, kElements * sizeof(float), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const std::span<float> tensor(static_cast<float*>(memory), kElements);
  std::fill(tensor.begin(), tensor.end(), 1.0F);
  ranks.engines[2]->submit(sum_in_place(tensor), {});
  for (auto& engine : ranks.engines) engine->turn(Time{});  // it has called, and given
  SECTION("so that it is not there any more") {
    munmap(memory, kElements * sizeof(float));
  }
  SECTION("so that it cannot be written") {
    mprotect(memory, kElements * sizeof(float), PROT_READ);
  }
  for (int i = 0; i < 2; ++i)
    for (LocalRank r = 0; r < 2; ++r) ranks.engines[r]->turn(Time{});
  REQUIRE(ranks.engines[0]->failure());
  ranks.turn();
  for (auto& engine : ranks.engines)
    CHECK(error_of(*engine) ==
          "job 7: rank 20 is lost: its tensor cannot be read or written any more: did it free "
          "the memory of a collective that was not done?");
  CHECK(ranks.parted == 0);
}

TEST_CASE("A rank whose process ends while peers sum its tensor is named") {
  Ranks ranks(2, 64 << 10, 0);
  std::array<std::vector<float>, 2> tensors;
  for (LocalRank r = 0; r < 2; ++r) {
    tensors[r].resize(1000, 1.0F);
    ranks.engines[r]->submit(sum_in_place(tensors[r]), {});
  }
  ranks.process = ProcessMemory(getpid(), -1);
  ranks.turn();
  const std::string why = error_of(*ranks.engines[0]);  // of whichever is read first
  CHECK_THAT(why, Contains("is lost: its process has ended"));
  CHECK(error_of(*ranks.engines[1]) == why);
}

TEST_CASE(
    "Of a small tensor so many bytes are told as a call says, and no more than it has room for") {
  const Ranks ranks(2);
  Call call;
  call.elements.fill(std::byte{7});
  const auto told = [&](OpNumber op, std::uint16_t bytes) {
    call.inline_bytes = bytes;
    ranks.boards[0]->call(op, call);
    const Call found = ranks.boards[1]->called(0, op);
    return std::count(found.elements.begin(), found.elements.end(), std::byte{7});
  };
  CHECK(told(0, 8) == 8);
  CHECK(told(1, 0) == 0);
  CHECK(told(2, 65'535) == kInlineBytes);
}

TEST_CASE("Memory of another build is refused") {
  std::array<std::byte, 64> small{};
  CHECK_THROWS_WITH(MappedBoard({}, {{small, small}}, 0, {}),
                    Contains("shares 64 and 64 bytes") && Contains("is it of another build?"));
}

TEST_CASE("Ranks in threads sum, in place and by copies, and wake each other") {
  constexpr LocalRank kRanks = 4;
  constexpr unsigned kOps = 200;
  std::uint64_t least_remote_bytes = host::Config::kNotReached;
  SECTION("through slots") {}
  SECTION("between processes") {
    least_remote_bytes = 0;
  }
  SECTION("in both ways") {
    least_remote_bytes = 100'000;
  }
  Ranks ranks(kRanks, 1 << 20, least_remote_bytes);
  std::array<std::atomic<unsigned>, kRanks> wrong{};
  std::vector<std::thread> threads;
  for (LocalRank r = 0; r < kRanks; ++r)
    threads.emplace_back([&ranks, &wrong, r] {
      Engine& engine = *ranks.engines[r];
      MappedBoard& board = *ranks.boards[r];
      std::vector<float> own(60'000);
      const auto now = [] { return Time{} + std::chrono::steady_clock::now().time_since_epoch(); };
      for (unsigned op = 0; op < kOps; ++op) {
        const std::size_t elements = op % 3 == 0 ? 5 : op % 3 == 1 ? 3000 : own.size();
        const bool is_shared = (op + r) % 2 == 0;
        const auto tensor = is_shared ? ranks.tensor(r, elements) : std::span(own).first(elements);
        std::fill(tensor.begin(), tensor.end(), static_cast<float>(r + op));
        engine.submit(sum_in_place(tensor), {});
        while (engine.pending_ops() != 0) {
          if (engine.turn(now())) continue;
          board.wake_peers();
          board.fall_asleep();
          const bool may_sleep = !engine.turn(now());
          board.wake_peers();
          pollfd event{.fd = ranks.events[r], .events = POLLIN, .revents = 0};
          // A wake-up that is missed is wrong, too.
          if (may_sleep && engine.pending_ops() != 0 && poll(&event, 1, 10'000) == 0) ++wrong[r];
          board.wake_up();
          eventfd_t count = 0;
          eventfd_read(event.fd, &count);
        }
        board.wake_peers();
        const auto sum = static_cast<float>(kRanks * op + kRanks * (kRanks - 1) / 2);
        const auto right = std::count(tensor.begin(), tensor.end(), sum);
        if (right != static_cast<std::ptrdiff_t>(elements)) ++wrong[r];
        engine.take_completions();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : wrong) CHECK(count == 0);
}

}  // namespace host_engine_tests
