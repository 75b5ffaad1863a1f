// Memory for the pairs of a host's ranks, which goes from op to op.
#include "worker/host/pair_memory.hpp"

#include <cstddef>
#include <memory>

#include "tests/unit/catch.hpp"
#include "worker/memory/arena.hpp"

namespace pair_memory_tests {

using namespace sluice;
using namespace sluice::worker::host;

namespace {

constexpr std::size_t kMany = std::size_t{1} << 20;  // bytes

const std::byte* take_and_give_back(const std::shared_ptr<PairPool>& pool, std::size_t bytes) {
  return PairPool::take(pool, bytes).get();
}

TEST_CASE("What is given back is taken for the next sum of about as many pairs") {
  const auto pool = std::make_shared<PairPool>();
  const std::byte* const first = take_and_give_back(pool, kMany);
  CHECK(take_and_give_back(pool, kMany) == first);
  CHECK(take_and_give_back(pool, kMany + kMany / 10) == first);
  CHECK(take_and_give_back(pool, kMany / 4) != first);
  CHECK(take_and_give_back(pool, 2 * kMany) != first);
}

TEST_CASE("What nobody takes for a while goes, and all with the pool and its last memory") {
  auto pool = std::make_shared<PairPool>();
  const memory::Arena& arena = memory::Arena::of_process();
  const std::byte* const first = take_and_give_back(pool, kMany);
  CHECK(arena.is_allocated(first));
  for (int i = 0; i < 20; ++i) take_and_give_back(pool, 8 * kMany);
  CHECK(!arena.is_allocated(first));
  PairPool::Memory held = PairPool::take(pool, 0);
  const std::byte* const spare = take_and_give_back(pool, 8 * kMany);
  pool.reset();
  CHECK(arena.is_allocated(spare));
  held.reset();
  CHECK(!arena.is_allocated(spare));
}

}  // namespace

}  // namespace pair_memory_tests
