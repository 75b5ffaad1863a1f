// Copies between a device and host memory, by the kernels that GPUs run, on a device of threads.
#include "bindings/torch/csrc/device_copies.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sluice/device.hpp>

#include "bindings/torch/csrc/cuda_device.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/fake_device.hpp"
#include "worker/engine/device_side.hpp"

namespace device_copies_tests {

using namespace sluice;
using namespace sluice_torch;
using Bytes = std::vector<std::byte>;

namespace {

/// A device, and its ops' pool. Its threads end with it: what they read and write must be declared
/// before it.
struct Bench {
  std::shared_ptr<fake::FakeDevice> device = std::make_shared<fake::FakeDevice>();
  std::shared_ptr<DevicePool> pool = std::make_shared<DevicePool>(device);

  ~Bench() { device->end(); }

  std::unique_ptr<DeviceCopies> copies() { return std::make_unique<DeviceCopies>(pool, nullptr); }
};

std::uint32_t load(const std::uint32_t* word) {
  return std::atomic_ref(const_cast<std::uint32_t&>(*word)).load(std::memory_order_acquire);
}
template <class Done>
bool is_done_in_time(Done&& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}
template <class Done>
void await(Done&& done) {
  REQUIRE(is_done_in_time(done));
}
bool has(std::span<const std::uint64_t> bits, std::uint64_t block) {
  return (bits[block / 64] >> (block % 64) & 1) != 0;
}

DevicePlan plan_of(ElementType type, std::uint32_t block, std::uint64_t elements) {
  return {.type = type,
          .block_elements = block,
          .blocks = static_cast<std::uint32_t>((elements + block - 1) / block),
          .held_begin = 0,
          .held_end = elements,
          .wanted_begin = 0,
          .wanted_end = elements};
}

/// The bytes of a block that lie in elements begin .. end - 1, from there on.
std::pair<std::size_t, std::size_t> piece_of(const DevicePlan& plan, std::uint64_t block,
                                             std::uint64_t begin, std::uint64_t end) {
  const std::size_t size = element_bytes(plan.type);
  const std::uint64_t from = std::clamp(block * plan.block_elements, begin, end);
  const std::uint64_t to = std::clamp((block + 1) * plan.block_elements, begin, end);
  return {(from - begin) * size, (to - begin) * size};
}

/// Whether an element is not zero, as a number.
bool is_nonzero(ElementType type, std::span<const std::byte> bytes) {
  const std::size_t size = element_bytes(type);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool has_sign = is_float(type) && i % size == size - 1;
    if ((bytes[i] & std::byte(has_sign ? 0x7f : 0xff)) != std::byte{}) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("blocks that are not zero, and no others, reach host memory; results come back") {
  std::mt19937_64 random(7);
  constexpr std::byte kGarbage{0x5a};
  for (int round = 0; round < 120; ++round) {
    const auto type =
        std::vector{ElementType::kFloat32, ElementType::kFloat64, ElementType::kBFloat16,
                    ElementType::kInt8, ElementType::kInt32}[random() % 5];
    const std::size_t size = element_bytes(type);
    const auto block = std::vector<std::uint32_t>{1, 3, 4, 16, 64, 256}[random() % 6];
    DevicePlan plan = plan_of(type, block, 1 + random() % 20'000);
    const std::uint64_t elements = plan.held_end;
    if (random() % 2 == 0) {  // a part is held, another wanted
      plan.held_begin = random() % elements;
      plan.held_end = plan.held_begin + random() % (elements - plan.held_begin + 1);
      plan.wanted_begin = random() % elements;
      plan.wanted_end = plan.wanted_begin + random() % (elements - plan.wanted_begin + 1);
    }
    const std::size_t held = (plan.held_end - plan.held_begin) * size;
    const std::size_t wanted = (plan.wanted_end - plan.wanted_begin) * size;
    // Anywhere in memory where elements can be.
    Bytes in_memory(held + 64), out_memory(wanted + 64, kGarbage);
    const std::span in(in_memory.data() + random() % (48 / size) * size, held);
    const std::span out(out_memory.data() + random() % (48 / size) * size, wanted);
    const double density = std::vector{0.0, 0.02, 0.5, 1.0}[random() % 4];
    const std::uint64_t first = plan.first_held();
    std::vector<bool> nonzero(plan.blocks);
    for (std::uint64_t b = first; b < first + plan.held_blocks(); ++b) {
      const auto [from, to] = piece_of(plan, b, plan.held_begin, plan.held_end);
      if (std::bernoulli_distribution(density)(random))
        in[from + random() % (to - from)] = std::byte(1 + random() % 255);
      else if (is_float(type) && random() % 4 == 0)
        in[from + size - 1] = std::byte{0x80};  // -0
      nonzero[b] = is_nonzero(type, in.subspan(from, to - from));
    }

    Bench bench;
    auto copies = bench.copies();
    std::byte* const host_in = held == 0 ? nullptr : copies->input(in.data(), held);
    std::byte* const host_out = wanted == 0 ? nullptr : copies->output(out.data(), wanted);
    if (held != 0) std::fill_n(host_in, held, kGarbage);
    const DeviceWords words = copies->begin(plan);
    const std::uint32_t chunks = (plan.held_blocks() + words.chunk_blocks - 1) / words.chunk_blocks;
    await([&] { return load(words.arrived) == 1 + chunks; });
    for (std::uint64_t b = 0; b < plan.blocks; ++b) {
      REQUIRE(has(words.nonzero_blocks, b) == nonzero[b]);
      if (b < first || b >= first + plan.held_blocks()) continue;
      const auto [from, to] = piece_of(plan, b, plan.held_begin, plan.held_end);
      if (nonzero[b])
        REQUIRE(std::memcmp(host_in + from, in.data() + from, to - from) == 0);
      else
        REQUIRE(std::all_of(host_in + from, host_in + to, [&](auto x) { return x == kGarbage; }));
    }

    for (std::size_t i = 0; i < wanted; ++i) host_out[i] = std::byte(random() % 256);
    for (std::uint64_t b = 0; b < plan.blocks; ++b)
      if (random() % 2 == 0) words.result_blocks[b / 64] |= std::uint64_t{1} << (b % 64);
    const std::uint32_t results =
        (plan.wanted_blocks() + words.chunk_blocks - 1) / words.chunk_blocks;
    std::atomic_ref(*words.final).store(results, std::memory_order_release);
    copies->block(nullptr);
    const std::uint64_t first_wanted = plan.first_wanted();
    for (std::uint64_t b = first_wanted; b < first_wanted + plan.wanted_blocks(); ++b) {
      const auto [from, to] = piece_of(plan, b, plan.wanted_begin, plan.wanted_end);
      const Bytes zeros(to - from);
      const std::byte* const expected =
          has(words.result_blocks, b) ? host_out + from : zeros.data();
      REQUIRE(std::equal(expected, expected + (to - from), out.data() + from));
    }
    const auto is_garbage = [&](std::byte x) { return x == kGarbage; };
    REQUIRE(std::all_of(out_memory.data(), out.data(), is_garbage));
    REQUIRE(std::all_of(out.data() + wanted, out_memory.data() + out_memory.size(), is_garbage));
  }
}

TEST_CASE("chunks arrive, and are taken, one after the other") {
  std::atomic<int> may_run{0};
  constexpr std::uint64_t kElements = 3 * DeviceCopies::kChunkBytes / sizeof(float);
  std::vector<float> tensor(kElements, 1);
  Bench bench;
  auto copies = bench.copies();
  auto* const host = reinterpret_cast<float*>(
      copies->in_place(reinterpret_cast<std::byte*>(tensor.data()), kElements * sizeof(float)));
  bench.device->delay = [&] {  // on a thread where Catch takes no assertions
    is_done_in_time([&] { return may_run.load() > 0; });
    --may_run;
  };
  const DevicePlan plan = plan_of(ElementType::kFloat32, 256, kElements);
  const DeviceWords words = copies->begin(plan);
  CHECK(load(words.arrived) == 0);
  worker::DeviceSide side({.plan = plan, .words = words});
  CHECK(!side.has_bitmap());
  const auto run = [&](int steps) {
    may_run += steps;
    await([&] { return may_run.load() == 0; });
  };
  run(3);  // the caller's event, marks, and that they are there
  await([&] { return load(words.arrived) == 1; });
  CHECK(side.has_bitmap());
  CHECK(!side.has_arrived(BlockIndex{0}));
  run(2);
  await([&] { return load(words.arrived) == 2; });
  CHECK(side.has_arrived(BlockIndex{words.chunk_blocks - 1}));
  CHECK(!side.has_arrived(BlockIndex{words.chunk_blocks}));
  may_run += 1000;
  await([&] { return load(words.arrived) == 4; });

  const std::uint32_t blocks = plan.blocks;
  const std::size_t chunk = words.chunk_blocks * 256;
  std::fill_n(host, chunk, 2.0f);
  side.has_result(BlockIndex{0}, words.chunk_blocks);
  for (std::uint32_t b = 0; b < words.chunk_blocks; ++b) side.has_ended(BlockIndex{b});
  side.publish_final();
  await([&] { return std::atomic_ref(tensor[chunk - 1]).load() == 2; });
  CHECK(tensor[chunk] == 1);
  CHECK(!bench.device->is_over(bench.device->record(copies->stream())));
  for (std::uint32_t b = words.chunk_blocks; b < blocks; ++b) side.has_ended(BlockIndex{b});
  side.publish_final();
  side.finish();
  copies->block(nullptr);
  CHECK(tensor[0] == 2);
  CHECK(tensor[chunk] == 0);  // zero on all ranks
  CHECK(tensor[std::size_t{blocks} * 256 - 1] == 0);
}

TEST_CASE("an op that fails lets the stream go on, with numbers that are none") {
  std::vector<float> tensor(1000, 1);
  Bench bench;
  auto copies = bench.copies();
  copies->in_place(reinterpret_cast<std::byte*>(tensor.data()), tensor.size() * sizeof(float));
  copies->begin(plan_of(ElementType::kFloat32, 256, tensor.size()));
  copies->give_up();
  copies->block(nullptr);
  for (const float x : tensor) REQUIRE(x != x);
}

TEST_CASE("a call that fails on its way leaves the tensor as it was") {
  std::vector<float> tensor(1000, 1);
  Bench bench;
  const auto fail = [&] {
    auto copies = bench.copies();
    copies->in_place(reinterpret_cast<std::byte*>(tensor.data()), tensor.size() * sizeof(float));
    copies->then([] { throw DeviceError("out of memory"); });
    copies->begin(plan_of(ElementType::kFloat32, 256, tensor.size()));
  };
  CHECK_THROWS_AS(fail(), DeviceError);
  bench.device->drain(bench.pool->take_stream());
  for (const float x : tensor) REQUIRE(x == 1);
}

TEST_CASE("a result in pieces is one chunk, with its zeros") {
  std::vector<float> out(3000, 7);
  Bench bench;
  auto copies = bench.copies();
  DevicePlan plan = plan_of(ElementType::kFloat32, 256, 6000);
  plan.held_begin = plan.held_end = 0;
  plan.wanted_end = out.size();
  plan.is_wanted_in_one = false;
  auto* const host = reinterpret_cast<float*>(
      copies->output(reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float)));
  const DeviceWords words = copies->begin(plan);
  for (std::size_t i = 0; i < out.size(); ++i) host[i] = static_cast<float>(i % 3);
  worker::DeviceSide side({.plan = plan, .words = words});
  CHECK(side.wants_zeros());
  CHECK(load(words.final) == 0);
  side.finish();
  copies->block(nullptr);
  for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == static_cast<float>(i % 3));
}

TEST_CASE("memory and streams are used again, but not while the device uses them") {
  std::atomic<bool> may_run{true};
  std::vector<float> tensor(1000, 1);
  Bench bench;
  const DevicePlan plan = plan_of(ElementType::kFloat32, 256, tensor.size());
  const auto run = [&] {
    auto copies = bench.copies();
    copies->input(reinterpret_cast<std::byte*>(tensor.data()), tensor.size() * sizeof(float));
    DevicePlan sent = plan;
    sent.wanted_end = 0;
    copies->begin(sent);
    copies->block(nullptr);
  };
  run();
  const std::size_t pinned = bench.pool->pinned_bytes();
  for (int i = 0; i < 10; ++i) run();
  CHECK(bench.pool->pinned_bytes() == pinned);
  CHECK(bench.device->streams() == 1);
  may_run = false;
  bench.device->delay = [&] { await([&] { return may_run.load(); }); };
  {
    auto copies = bench.copies();
    copies->input(reinterpret_cast<std::byte*>(tensor.data()), tensor.size() * sizeof(float));
  }
  const auto idle = bench.pool->take_memory(tensor.size() * sizeof(float));
  const auto other = bench.pool->take_memory(tensor.size() * sizeof(float));
  CHECK(bench.pool->pinned_bytes() > pinned);
  bench.pool->give_back(idle, nullptr);
  bench.pool->give_back(other, nullptr);
  may_run = true;
}

TEST_CASE("memory that cannot be pinned is an error that says how much, and what is unused goes") {
  Bench bench;
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  bench.device->pinned_most = kLarge;
  const auto first = bench.pool->take_memory(kLarge / 2);
  bench.pool->give_back(first, nullptr);
  const auto second = bench.pool->take_memory(kLarge);  // for which the first one goes
  CHECK(bench.device->pinned() == kLarge);
  std::string text;
  try {
    bench.pool->take_memory(5000);
  } catch (const DeviceError& error) {
    text = error.what();
  }
  CHECK(text.find("pin 8192 bytes") != std::string::npos);
  CHECK(text.find("has 8388608 bytes pinned") != std::string::npos);
  bench.pool->give_back(second, nullptr);
}

TEST_CASE("a GPU that is not there, or a driver, is an error that names what is missing") {
  std::string text;
  try {
    open_cuda(12345, {});
  } catch (const DeviceError& error) {
    text = error.what();
  }
  const bool is_named = text.find("libcuda.so.1") != std::string::npos ||
                        text.find("cuInit") != std::string::npos ||
                        text.find("cuDeviceGet 12345") != std::string::npos;
  CHECK(is_named);
}

TEST_CASE("NVRTC takes the kernels for all GPUs that it knows, where it is installed") {
  for (const int capability : {75, 80, 90, 100}) {
    try {
      const std::string ptx = compile_kernels(capability, {});
      for (const char* name : kKernelNames)
        CHECK(ptx.find(".entry " + std::string(name)) != std::string::npos);
    } catch (const DeviceError& error) {
      if (std::string(error.what()).find("not found") == std::string::npos) throw;
      WARN("skipped: the kernels for a GPU: " << error.what());
      return;
    }
  }
}

}  // namespace device_copies_tests
