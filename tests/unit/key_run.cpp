// Runs of pairs: what is read is what was written, at nearly the fewest bits, and whatever is read
// rises.
#include "common/protocol/key_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/sim/random.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/kernel_parts.hpp"

namespace key_run_tests {

using namespace sluice;

namespace {

constexpr std::size_t kRoom = 1400;

RunFormat format_of(std::uint16_t row_bytes) {
  return {0, row_bytes, ElementType::kInt8};
}

/// The run of as many of these keys as fit; its rows are zeros.
std::vector<std::byte> run_of(std::span<const std::uint64_t> keys, const RunFormat& format,
                              std::size_t room = kRoom) {
  const RunPlan plan = plan_run(keys, room, format, false);
  REQUIRE(plan.bytes <= room);
  std::vector<std::byte> run(plan.bytes);
  if (!run.empty()) write_keys(plan.coding, keys, run);
  return run;
}

/// All keys of a run that is valid.
std::vector<std::uint64_t> keys_of(std::span<const std::byte> run, const RunFormat& format) {
  const auto view = RunView::parse(run);
  REQUIRE(view);
  REQUIRE(view->has_rows(format));
  KeyReader reader(*view);
  const auto last = reader.last();
  REQUIRE(last);
  std::vector<std::uint64_t> keys(view->coding.keys + 1);
  keys.resize(reader.read_below(kNoKey, 0, keys.data()));
  REQUIRE(reader.next() == kNoKey);
  REQUIRE(keys.size() == view->coding.keys);
  REQUIRE(keys.back() == *last);
  return keys;
}

bool is_valid(std::span<const std::byte> run, const RunFormat& format) {
  const auto view = RunView::parse(run);
  return view && (view->coding.keys == 0 || (view->has_rows(format) && KeyReader(*view).last()));
}

/// Keys that are there or not by chance.
std::vector<std::uint64_t> random_keys(sim::Random& random, double density, std::size_t count,
                                       std::uint64_t first) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = first; keys.size() < count; ++key) {
    keys.push_back(key);
    if (density < 1)
      key += static_cast<std::uint64_t>(std::log(1 - random.unit()) / std::log(1 - density));
  }
  return keys;
}

/// Runs of all kinds with every instruction set: `test(random)`.
template <class Test>
void on_every_target(int times, std::uint64_t seed, const Test& test) {
  for (const std::int64_t target : parts::distinct_targets()) {
    const parts::TargetScope scope(target);
    sim::Random random(seed);
    for (int i = 0; i < times; ++i) test(random);
  }
}

}  // namespace

TEST_CASE("what is read of a run is what was written") {
  on_every_target(2000, 1, [](sim::Random& random) {
    const RunFormat format = format_of(static_cast<std::uint16_t>(random.between(1, 20)));
    const double density = random.pick({1.0, 0.9, 0.5, 0.3, 0.1, 0.01, 1e-3, 1e-6, 1e-12});
    const std::uint64_t first =
        random.pick<std::uint64_t>({0, random.below(300), random.next() / 2});
    const auto keys = random_keys(random, density, random.between(1, 600), first);
    const auto run = run_of(keys, format, random.between(60, kRoom));
    const auto read = keys_of(run, format);
    REQUIRE(std::equal(read.begin(), read.end(), keys.begin()));
    // No part of it is a run.
    REQUIRE(!is_valid(std::span(run).first(run.size() - 1), format));
  });
}

TEST_CASE("a run is filled, whatever its keys are") {
  sim::Random random(2);
  for (const double density : {1.0, 0.5, 0.1, 0.01, 0.001}) {
    const auto keys = random_keys(random, density, 2000, 5);
    const RunPlan plan = plan_run(keys, kRoom, format_of(4), false);
    CHECK(plan.coding.keys < keys.size());
    CHECK(plan.bytes > kRoom - 8);
  }
  // Also of keys that lie far apart, after some that do not.
  auto keys = random_keys(random, 1, 100, 0);
  for (int i = 1; i < 400; ++i) keys.push_back(keys.back() + (std::uint64_t{1} << 40));
  const auto read = keys_of(run_of(keys, format_of(4)), format_of(4));
  CHECK(std::equal(read.begin(), read.end(), keys.begin()));
  CHECK(read.size() > 100);
}

TEST_CASE("keys that are there by chance take few bits more than they must") {
  sim::Random random(3);
  for (const double density : {0.5, 0.34, 0.1, 0.04, 0.01, 0.004, 0.001, 1e-6}) {
    const auto keys = random_keys(random, density, 20'000, 0);
    const RunPlan plan = plan_run(keys, std::size_t{1} << 20, format_of(1), false);
    REQUIRE(plan.coding.keys == keys.size());
    const double bits = 8.0 * static_cast<double>(plan.coding.bytes()) / 20'000;
    const double least = -std::log2(density) - (1 - density) / density * std::log2(1 - density);
    CAPTURE(density, bits, least);
    CHECK(bits < least + 1);
  }
  // All neighbours take none.
  const auto all = random_keys(random, 1, 300, 7);
  CHECK(plan_run(all, kRoom, format_of(4), false).coding.bytes() == sizeof(wire::RunHeader));
}

TEST_CASE("keys are read up to a limit, and on from there") {
  on_every_target(500, 4, [](sim::Random& random) {
    const double density = random.pick({1.0, 0.5, 0.1, 0.01, 1e-5});
    const auto keys = random_keys(random, density, random.between(1, 300), random.below(1000));
    const RunFormat format = format_of(1);
    const auto run = run_of(keys, format);
    const std::size_t written = keys_of(run, format).size();
    KeyReader reader(*RunView::parse(run));
    std::vector<std::uint64_t> read;
    std::vector<std::uint32_t> some(written + 1);
    while (reader.next() != kNoKey) {
      REQUIRE(reader.next() == keys[read.size()]);
      REQUIRE(reader.left() == written - read.size());
      const std::uint64_t base = reader.next() - random.below(reader.next() + 1);
      const std::uint64_t limit =
          reader.next() + random.below(1 + static_cast<std::uint64_t>(5 / density));
      std::size_t count = reader.read_below(limit, base, some.data());
      if (count != 0 && density > 1e-4 && random.chance(0.5)) {  // some are read again later
        const std::size_t kept = random.below(count);
        reader.put_back(std::span(some).subspan(kept, count - kept), base);
        REQUIRE(reader.next() == base + some[kept]);
        for (std::size_t k = 0; k < kept; ++k) read.push_back(base + some[k]);
        continue;
      }
      for (std::size_t k = 0; k < count; ++k)
        read.push_back(density < 1e-4 ? keys[read.size()] : base + some[k]);
      REQUIRE((read.empty() || read.back() < std::max(limit, read.back() + 1)));
      REQUIRE((count == 0 || read.back() < limit));
      REQUIRE(reader.next() >= limit);
    }
    REQUIRE(read.size() == written);
    REQUIRE(std::equal(read.begin(), read.end(), keys.begin()));
  });
}

TEST_CASE("two keys may lie as far apart as keys can") {
  for (const std::uint64_t far : {1ull << 61, 1ull << 62, 1ull << 63, ~0ull - 1}) {
    const std::vector<std::uint64_t> keys{0, far - 1, far};
    const auto run = run_of(keys, format_of(4), 8900);  // 256 escapes
    CHECK(keys_of(run, format_of(4)) == keys);
    KeyReader reader(*RunView::parse(run));
    std::vector<std::uint64_t> some(4);
    CHECK(reader.read_below(1000, 0, some.data()) == 1);
    CHECK(reader.next() == far - 1);
    CHECK(reader.read_below(far, 0, some.data()) == 1);
    CHECK(reader.next() == far);
  }
}

TEST_CASE("scaled rows: a run has whole chunks") {
  const RunFormat format(4, 1, WireType(Encoding::kInt8));
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 3; key < 400; key += 3) keys.push_back(key);
  const RunPlan all = plan_run(keys, kRoom, format, false);
  CHECK(all.coding.keys == keys.size());
  // The last chunk may have more keys.
  const RunPlan some = plan_run(keys, kRoom, format, true);
  CHECK(format.chunk_of(keys[some.coding.keys]) == format.chunk_of(keys.back()));
  CHECK(format.chunk_of(keys[some.coding.keys - 1]) < format.chunk_of(keys.back()));
  for (std::size_t room = 60; room < 200; ++room) {
    const RunPlan plan = plan_run(keys, room, format, false);
    REQUIRE(plan.bytes <= room);
    const std::size_t end = plan.coding.keys;
    REQUIRE((end == keys.size() || format.chunk_of(keys[end]) != format.chunk_of(keys[end - 1])));
  }
  // A chunk that is full, and keys far away.
  std::vector<std::uint64_t> apart(16);
  std::iota(apart.begin(), apart.end(), std::uint64_t{16});
  for (int i = 0; i < 50; ++i) apart.push_back(apart.back() + (std::uint64_t{1} << 50));
  CHECK(plan_run(apart, 64, format, false).coding.keys == 16);
}

TEST_CASE("scaled rows of a full chunk behind others are checked within the chunk's memory") {
  const RunFormat format(8, 1, WireType(Encoding::kInt8));
  sim::Random random(8);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::uint64_t> keys;
    for (std::uint64_t key = 0; key < 256; ++key)
      if (random.chance(0.3)) keys.push_back(key);
    keys.push_back(256 + random.below(200));  // its symbols begin within a word
    for (std::uint64_t key = 512; key < 512 + 256 + random.below(200); ++key) keys.push_back(key);
    const RunPlan plan = plan_run(keys, kRoom, format, false);
    std::vector<std::byte> run(plan.bytes);
    write_keys(plan.coding, keys, run);  // scales and rows are zeros
    REQUIRE(RunView::parse(run)->has_rows(format));
  }
}

TEST_CASE("keys that do not fit do not decide how those that do are written") {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t cluster = 0; cluster < 3; ++cluster)
    for (std::uint64_t key = 0; key < 200; ++key) keys.push_back((cluster << 40) + 3 * key);
  const RunPlan plan = plan_run(keys, kRoom, format_of(4), false);
  CHECK(plan.coding.keys >= 200);
  CHECK(plan.coding.width < 8);
}

TEST_CASE("keys that follow a full run do not change it") {
  sim::Random random(6);
  for (int i = 0; i < 3000; ++i) {
    const RunFormat format = format_of(random.pick<std::uint16_t>({1, 2, 4, 8, 100}));
    const std::size_t room = random.between(150, kRoom);
    auto keys = random_keys(random, random.pick({1.0, 0.5, 0.1, 0.01}), 2000, 0);
    const std::size_t change = random.below(500);  // from there on they lie farther apart
    const std::uint64_t times = random.pick<std::uint64_t>({1, 3, 1000});
    for (std::size_t k = change; k < keys.size(); ++k) keys[k] += (keys[k] - keys[change]) * times;
    const std::size_t some = keys_that_decide(room, format) + random.below(300);
    const RunPlan plan = plan_run(std::span(keys).first(some), room, format, false);
    if (plan.coding.keys == some) continue;
    const RunPlan of_all = plan_run(keys, room, format, false);
    REQUIRE(of_all.bytes == plan.bytes);
    REQUIRE(of_all.coding.keys == plan.coding.keys);
    REQUIRE(of_all.coding.width == plan.coding.width);
  }
}

TEST_CASE("keys are written alike with every set of instructions") {
  std::vector<std::vector<std::byte>> first;
  for (const std::int64_t target : parts::distinct_targets()) {
    const parts::TargetScope scope(target);
    sim::Random random(7);
    std::vector<std::vector<std::byte>> runs;
    for (const double density : {0.5, 0.3, 0.1, 0.01, 1e-3, 1e-4, 1e-9})
      for (int i = 0; i < 50; ++i)
        runs.push_back(run_of(random_keys(random, density, random.between(1, 600), 3), format_of(4),
                              random.between(60, kRoom)));
    if (first.empty()) first = runs;
    REQUIRE(runs == first);
  }
}

TEST_CASE("a run that is not one is refused") {
  const RunFormat format = format_of(1);
  const std::vector<std::uint64_t> keys{7, 9, 10, 31, 32, 50};
  const auto good = run_of(keys, format);
  REQUIRE(is_valid(good, format));
  wire::RunHeader header;
  std::memcpy(&header, good.data(), sizeof header);
  REQUIRE(header.width != 0);
  const auto changed = [&](auto change) {
    auto run = good;
    wire::RunHeader other = header;
    change(other);
    std::memcpy(run.data(), &other, sizeof other);
    return is_valid(run, format);
  };
  CHECK(changed([](wire::RunHeader&) {}));
  CHECK(!changed([](wire::RunHeader& h) { h.keys = 0; }));
  CHECK(!changed([](wire::RunHeader& h) { h.keys = 5; }));
  CHECK(!changed([](wire::RunHeader& h) { h.keys = 7; }));
  CHECK(!changed([](wire::RunHeader& h) { h.escapes = 60'000; }));
  CHECK(!changed([](wire::RunHeader& h) { h.width = 57; }));
  CHECK(!changed([](wire::RunHeader& h) { h.width = 0; }));
  CHECK(!changed([](wire::RunHeader& h) { h.first = kNoKey; }));
  CHECK(!changed([](wire::RunHeader& h) { h.first = kNoKey - 43; }));  // the last one is too large
  CHECK(changed([](wire::RunHeader& h) { h.first = kNoKey - 44; }));
  CHECK(!RunView::parse(std::span(good).first(15)));
  CHECK(RunView::parse({})->coding.keys == 0);
  // An escape that no key follows.
  std::vector<std::byte> run(sizeof header + 1 + 2);
  header.first = 1;
  header.keys = 2;
  header.escapes = 1;
  header.width = 2;
  std::memcpy(run.data(), &header, sizeof header);
  run[sizeof header] = std::byte{0b0111};
  CHECK(is_valid(run, format));  // an escape, a key
  run[sizeof header] = std::byte{0b1101};
  CHECK(!is_valid(run, format));  // a key, an escape
}

TEST_CASE("any bytes are read without harm, and what is read rises") {
  std::vector<std::uint64_t> keys;
  on_every_target(20'000, 5, [&](sim::Random& random) {
    std::vector<std::byte> run(sizeof(wire::RunHeader) + random.below(60));
    for (std::byte& byte : run)
      byte = static_cast<std::byte>(random.chance(0.5) ? random.below(4) : random.next());
    wire::RunHeader header;
    std::memcpy(&header, run.data(), sizeof header);
    header.keys = static_cast<std::uint16_t>(random.below(90));
    header.escapes = static_cast<std::uint16_t>(random.below(20));
    header.width = static_cast<std::uint8_t>(random.below(58));
    std::memcpy(run.data(), &header, sizeof header);
    const auto view = RunView::parse(run);
    if (!view) return;
    KeyReader reader(*view);
    const std::uint64_t limit = random.pick<std::uint64_t>({kNoKey, header.first + 300});
    keys.assign(view->coding.keys + 1, 0);
    const std::size_t count = reader.read_below(limit, 0, keys.data());
    REQUIRE(count <= view->coding.keys);
    for (std::size_t k = 1; k < count; ++k) REQUIRE(keys[k] > keys[k - 1]);
    REQUIRE((count == 0 || keys[count - 1] < limit));
  });
}

}  // namespace key_run_tests
