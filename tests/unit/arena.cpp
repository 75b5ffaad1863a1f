// Tensors where other ranks may read them: what is given out, given back and found, and what a
// forked child has of it.
#include "worker/memory/arena.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "tests/unit/catch.hpp"

namespace arena_tests {

using namespace sluice;
using namespace sluice::memory;
using Catch::Contains;

namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kRegion = 2 * kMib;  // as small as they get

using Bytes = std::span<std::byte>;

Bytes take(Arena& arena, std::size_t bytes, std::size_t alignment = Arena::kAlignment) {
  return {arena.allocate(bytes, alignment), bytes};
}

/// Bytes that the system holds for a region.
std::size_t held(const OwnRegion& region) {
  struct stat file {};
  REQUIRE(fstat(region.descriptor().get(), &file) == 0);
  return static_cast<std::size_t>(file.st_blocks) * 512;
}

std::size_t held(const Arena& arena) {
  std::size_t bytes = 0;
  for (const auto& region : arena.regions()) bytes += held(*region);
  return bytes;
}

/// What another rank sees of it.
class Peer {
 public:
  explicit Peer(const OwnRegion& own) : region_(map_for_reading(own.descriptor(), 1024 * kMib)) {}
  std::byte at(std::uint64_t offset) const { return region_.bytes()[offset]; }

 private:
  Mapping region_;
};

/// Sets a limit for as long as it lives.
class Limited {
 public:
  Limited(int what, rlim_t to) : what_(what) {
    REQUIRE(getrlimit(what, &before_) == 0);
    const rlimit now{to, before_.rlim_max};
    REQUIRE(setrlimit(what, &now) == 0);
  }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;
  ~Limited() { setrlimit(what_, &before_); }

 private:
  int what_;
  rlimit before_{};
};

/// Runs it in a forked child, which succeeds if it returns true.
template <class Body>
bool holds_in_child(Body&& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool holds = false;
    try {
      holds = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
    }
    _exit(holds ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("a tensor of the arena is read by a peer where it lies, by region and offset") {
  Arena arena(kRegion);
  const auto tensor = take(arena, 100'000);
  tensor[99'999] = std::byte{42};
  const auto place = arena.find(tensor);
  REQUIRE(place);
  const auto regions = arena.regions();
  REQUIRE(regions.size() == 1);
  CHECK(place->region == regions.front()->id());
  CHECK(Peer(*regions.front()).at(place->offset + 99'999) == std::byte{42});
  CHECK(arena.find(tensor.subspan(77, 5)) == Arena::Place{place->region, place->offset + 77});
}

TEST_CASE("only allocated bytes of one region are found") {
  Arena arena(kRegion);
  const auto first = take(arena, 4'096);
  const auto second = take(arena, 8'192);
  const auto third = take(arena, 4'096);
  REQUIRE(first.data() + 4'096 == second.data());
  const auto with_neighbour = Bytes(first.data(), 12'288);
  CHECK(arena.find(with_neighbour));
  CHECK_FALSE(arena.find(Bytes(third.data(), 4'097)));
  CHECK_FALSE(arena.find(Bytes(third.data() + 4'096, 1)));
  CHECK_FALSE(arena.find(Bytes(first.data() - 1, 2)));
  CHECK_FALSE(arena.find(Bytes(first.data(), 3 * kRegion)));
  CHECK_FALSE(arena.find(Bytes(first.data(), std::size_t{0})));
  CHECK_FALSE(arena.find({}));
  std::array<std::byte, 64> elsewhere;
  CHECK_FALSE(arena.find(elsewhere));
  arena.deallocate(second.data());
  CHECK_FALSE(arena.find(second));
  CHECK_FALSE(arena.find(with_neighbour));
  CHECK(arena.find(first));
  CHECK(arena.find(third));
}

TEST_CASE("memory is aligned as is asked, and writable to its last byte") {
  Arena arena(kRegion);
  for (std::size_t alignment = 1; alignment <= Arena::kAlignmentMost; alignment *= 2)
    for (const std::size_t bytes : {0u, 1u, 64u, 65u, 4'095u, 4'097u, 3'000'000u}) {
      std::byte* const memory = arena.allocate(bytes, alignment);
      const auto address = reinterpret_cast<std::uintptr_t>(memory);
      CHECK(address % std::max(alignment, Arena::kAlignment) == 0);
      std::memset(memory, 0xff, bytes);
    }
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, 2 * Arena::kAlignmentMost})
    CHECK_THROWS_WITH(arena.allocate(64, alignment),
                      Contains(std::to_string(alignment)) && Contains("1..2097152"));
}

TEST_CASE("freed memory is given out again, neighbours as one") {
  Arena arena(kRegion);
  std::vector<std::byte*> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(arena.allocate(kRegion / 8));
  const auto* const first = parts.front();
  // In an order in which a range is joined with none, the one before, the one after, and both.
  for (const int i : {0, 2, 3, 7, 6, 1, 5, 4}) arena.deallocate(parts[i]);
  CHECK(arena.allocate(kRegion) == first);
  CHECK(arena.regions().size() == 1);
}

TEST_CASE("a hole is filled, and one that is too small is not") {
  Arena arena(kRegion);
  auto* const first = arena.allocate(8'192);
  auto* const hole = arena.allocate(8'192);
  auto* const last = arena.allocate(8'192);
  arena.deallocate(hole);
  CHECK(arena.allocate(12'288) == last + 8'192);
  CHECK(arena.allocate(4'096) == hole);
  CHECK(arena.allocate(64, 1'024) == hole + 4'096);
  CHECK(arena.allocate(64) == hole + 4'096 + 64);
  arena.deallocate(first);
}

TEST_CASE("the arena grows by regions, and lets go of those that are free, but one") {
  Arena arena(kRegion);
  CHECK(arena.regions().empty());
  auto changes = arena.changes();
  const auto has_changed = [&] { return std::exchange(changes, arena.changes()) != changes; };
  auto* const a = arena.allocate(kRegion);
  CHECK(has_changed());
  auto* const b = arena.allocate(kRegion);
  CHECK(has_changed());
  auto* const c = arena.allocate(3 * kRegion - 1);  // larger than a region
  CHECK(has_changed());
  auto regions = arena.regions();
  REQUIRE(regions.size() == 3);
  std::size_t bytes = 0;
  for (const auto& region : regions) bytes += region->bytes().size();
  CHECK(bytes == 5 * kRegion);
  arena.deallocate(b);
  CHECK_FALSE(has_changed());
  CHECK(arena.allocate(100) == b);
  CHECK_FALSE(has_changed());
  std::memset(b, 1, 100);
  arena.deallocate(b);
  arena.deallocate(c);
  CHECK(has_changed());
  CHECK(arena.regions().size() == 2);
  // What goes keeps its addresses while somebody holds it, but no memory.
  for (const auto& region : regions) {
    if (region->bytes().data() != b) continue;
    CHECK(held(*region) == 0);
    CHECK(Peer(*region).at(0) == std::byte{0});
    region->bytes()[0] = std::byte{1};
  }
  // A free region that is too small makes room.
  arena.allocate(5 * kRegion);
  CHECK(arena.regions().size() == 2);
  arena.deallocate(a);
}

TEST_CASE("pages of freed tensors go back to the system, but for as many as a region has") {
  Arena arena(kRegion);
  auto* const kept = arena.allocate(64);
  auto* const large = arena.allocate(16 * kMib);
  auto* const other = arena.allocate(64);
  std::memset(large, 1, 16 * kMib);
  CHECK(held(arena) >= 16 * kMib);
  arena.deallocate(large);
  CHECK(held(arena) <= 2 * kRegion);
  arena.deallocate(other);
  arena.deallocate(kept);
}

TEST_CASE("small tensors next to what goes back keep their contents") {
  Arena arena(kRegion);
  std::vector<std::byte*> all;
  for (int i = 0; i < 20'000; ++i) {
    all.push_back(arena.allocate(1'000));
    std::memset(all.back(), i % 251, 1'000);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i % 100 != 0) arena.deallocate(all[i]);
  bool intact = true;
  for (std::size_t i = 0; i < all.size(); i += 100)
    intact &= std::all_of(all[i], all[i] + 1'000,
                          [i](std::byte byte) { return byte == std::byte(i % 251); });
  CHECK(intact);
  CHECK(held(arena) < 10 * kMib);
}

TEST_CASE("random tensors of many sizes never share a byte") {
  Arena arena(kRegion);
  std::mt19937 draw(7);
  struct Tensor {
    Bytes bytes;
    std::byte value;
  };
  std::vector<Tensor> tensors;
  for (int step = 0; step < 5'000; ++step) {
    if (tensors.empty() || draw() % 5 < 3) {
      const std::size_t bytes = draw() % (std::size_t{1} << draw() % 19) + 1;
      const Tensor made{take(arena, bytes, std::size_t{1} << draw() % 14), std::byte(draw())};
      std::memset(made.bytes.data(), static_cast<int>(made.value), bytes);
      REQUIRE(arena.find(made.bytes));
      tensors.push_back(made);
    } else {
      std::swap(tensors[draw() % tensors.size()], tensors.back());
      const Tensor& gone = tensors.back();
      REQUIRE(std::count(gone.bytes.begin(), gone.bytes.end(), gone.value) ==
              static_cast<std::ptrdiff_t>(gone.bytes.size()));
      arena.deallocate(gone.bytes.data());
      tensors.pop_back();
    }
  }
  for (const Tensor& tensor : tensors) arena.deallocate(tensor.bytes.data());
  CHECK(arena.regions().size() == 1);
}

TEST_CASE("threads take and free tensors of one arena, and of each other") {
  Arena arena(kRegion);
  std::array<std::atomic<std::byte*>, 16> shelf{};
  std::atomic<bool> intact = true;
  const auto run = [&](unsigned seed) {
    std::mt19937 draw(seed);
    for (int step = 0; step < 4'000; ++step) {
      const std::size_t bytes = 64 + draw() % 300'000;
      auto* const made = arena.allocate(bytes);
      const auto value = static_cast<std::byte>(seed);
      std::memcpy(made, &bytes, sizeof bytes);
      made[bytes - 1] = value;
      if (!arena.find({made, bytes})) intact = false;
      if (made[bytes - 1] != value) intact = false;
      std::byte* const other = shelf[draw() % shelf.size()].exchange(made);
      arena.deallocate(other);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(run, seed);
  for (auto& thread : threads) thread.join();
  CHECK(intact);
  for (auto& left : shelf) arena.deallocate(left);
  CHECK(arena.regions().size() == 1);
}

TEST_CASE("where the system gives no region, memory is ordinary, and that is said once") {
  Arena arena(kRegion);
  std::vector<std::string> told;
  const auto sink = [&told](const std::string& why) { told.push_back(why); };
  arena.tell_refusal_to(sink);
  std::byte* ordinary = nullptr;
  {
    const Limited files(RLIMIT_FSIZE, kMib);  // which would end the process by a signal
    ordinary = arena.allocate(100'000, 4'096);
    std::memset(ordinary, 1, 100'000);
    CHECK_FALSE(arena.find({ordinary, 100'000}));
    CHECK(arena.is_allocated(ordinary));
    arena.deallocate(arena.allocate(10));
  }
  REQUIRE(told.size() == 1);
  CHECK_THAT(told.front(), Contains("2097152 bytes") && Contains("at most 1048576 bytes"));
  const auto tensor = take(arena, 100);  // there are regions again
  CHECK(arena.find(tensor));
  arena.deallocate(ordinary);
  arena.tell_refusal_to(sink);  // who asks later learns it, too
  CHECK(told.size() == 2);
}

TEST_CASE("what no machine has is refused with its size, and nothing is left of it") {
  Arena arena(kRegion);
  bool told = false;
  arena.tell_refusal_to([&told](const std::string&) { told = true; });
  for (const std::size_t bytes : {std::size_t{1} << 46, SIZE_MAX / 2, SIZE_MAX}) {
    try {
      arena.allocate(bytes);
      FAIL("allocated");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);
      CHECK_THAT(error.what(), Contains(std::to_string(bytes)));
    }
  }
  CHECK(arena.regions().empty());
  CHECK_FALSE(told);  // which is for what goes on otherwise
}

TEST_CASE("null is freed, and others' memory is told from the arena's") {
  Arena arena(kRegion);
  arena.deallocate(nullptr);
  CHECK_FALSE(arena.is_allocated(nullptr));
  const auto tensor = take(arena, 100);
  CHECK(arena.is_allocated(tensor.data()));
  CHECK_FALSE(arena.is_allocated(tensor.data() + 64));
  CHECK_FALSE(arena.is_allocated(&arena));
  arena.deallocate(tensor.data());
  CHECK_FALSE(arena.is_allocated(tensor.data()));
  CHECK_FALSE(arena.find(Bytes(static_cast<std::byte*>(nullptr), std::size_t{0})));
}

TEST_CASE("a forked child's arena is private to it") {
  Arena& arena = Arena::of_process();
  const auto tensor = take(arena, 3 * kMib);
  const auto small = take(arena, 100);
  std::fill(tensor.begin(), tensor.end(), std::byte{1});
  small[0] = std::byte{2};
  const auto place = arena.find(tensor);
  REQUIRE(place);
  const auto changes = arena.changes();
  CHECK(holds_in_child([&] {
    bool good = tensor[0] == std::byte{1} && tensor.back() == std::byte{1};
    good &= small[0] == std::byte{2};
    good &= arena.changes() != changes && arena.regions().empty();
    good &= !arena.find(tensor) && !arena.find(small);
    std::fill(tensor.begin(), tensor.end(), std::byte{9});
    const auto own = take(arena, 5'000);
    own[0] = std::byte{7};
    good &= arena.find(own) && arena.regions().size() == 1;
    good &= arena.find(own)->region != place->region;
    // A child of its own has what this one has written, in both.
    good &= holds_in_child([&] {
      const bool is_as_it_was = tensor[4'096] == std::byte{9} && own[0] == std::byte{7};
      own[0] = std::byte{8};
      arena.deallocate(tensor.data());
      return is_as_it_was && !arena.find(own) && arena.regions().empty();
    });
    good &= own[0] == std::byte{7} && tensor[4'096] == std::byte{9};
    arena.deallocate(tensor.data());
    good &= small[0] == std::byte{2};
    arena.deallocate(small.data());
    arena.deallocate(own.data());
    return good;
  }));
  CHECK(std::count(tensor.begin(), tensor.end(), std::byte{1}) == 3 * kMib);
  CHECK(small[0] == std::byte{2});
  CHECK(arena.find(tensor) == place);
  CHECK(arena.changes() == changes);
  arena.deallocate(tensor.data());
  arena.deallocate(small.data());
}

TEST_CASE("a child sees its parent's tensors also where the region's file was closed") {
  Arena& arena = Arena::of_process();
  CHECK(holds_in_child([&] {
    const auto tensor = take(arena, 100'000);
    std::fill(tensor.begin(), tensor.end(), std::byte{5});
    // As a program does that closes all that it does not know, and opens files of its own.
    const int number = arena.regions().front()->descriptor().get();
    const Descriptor other(memfd_create("other", 0));
    if (!other || dup2(other.get(), number) != number) return false;
    return holds_in_child([&] {
             const bool is_there = tensor[0] == std::byte{5} && tensor[99'999] == std::byte{5};
             std::fill(tensor.begin(), tensor.end(), std::byte{6});
             arena.deallocate(tensor.data());
             return is_there;
           }) &&
           tensor[0] == std::byte{5};
  }));
}

TEST_CASE("a process can be forked while others of its threads use the arena") {
  Arena& arena = Arena::of_process();
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 2; ++seed)
    threads.emplace_back([&arena, &ends, seed] {
      std::mt19937 draw(seed);
      while (!ends) {
        auto* const memory = arena.allocate(64 + draw() % (4 * kMib));
        memory[0] = std::byte{1};
        arena.deallocate(memory);
      }
    });
  for (int i = 0; i < 30; ++i)
    CHECK(holds_in_child([&arena] {
      const auto tensor = take(arena, 100'000);
      tensor[99'999] = std::byte{1};
      arena.deallocate(tensor.data());
      return !arena.find(tensor);
    }));
  ends = true;
  for (auto& thread : threads) thread.join();
}

}  // namespace arena_tests
