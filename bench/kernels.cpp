// Sums, search and plain passes over memory, for Google Benchmark: see --help.
//
// bytes_per_second counts the bytes that a kernel reads; for a copy, that is half of what is moved.
#include "common/numeric/kernels.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <sluice/types.hpp>

#include "common/numeric/compression.hpp"

namespace {

using namespace sluice;

constexpr std::size_t kTensorBytes = std::size_t{100} << 20;
constexpr std::uint32_t kBlockElements = 256;
constexpr std::uint32_t kBlocksPerPacket = 8;  // of fp32, in a frame of 9000 bytes

using Words [[gnu::vector_size(64)]] = std::uint64_t;

struct alignas(numeric::kAccumulatorAlignment) Line {
  std::array<std::uint64_t, sizeof(Words) / sizeof(std::uint64_t)> words{};
};

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}

  std::byte* bytes() { return reinterpret_cast<std::byte*>(lines_.data()); }

 private:
  std::vector<Line> lines_;
};

void count_bytes(benchmark::State& state, std::size_t of_an_iteration) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(of_an_iteration));
}

/// The least work of any pass over memory, on the widest vectors of the CPU.
[[gnu::target_clones("avx512f", "avx2", "default")]] bool any_bit(const std::byte* bytes,
                                                                  std::size_t size) {
  constexpr std::size_t kStep = 4 * sizeof(Words);
  Words a{}, b{}, c{}, d{};
  for (std::size_t i = 0; i < size; i += kStep) {
    const auto* words = reinterpret_cast<const Words*>(bytes + i);
    a |= words[0];
    b |= words[1];
    c |= words[2];
    d |= words[3];
  }
  const Words all = a | b | c | d;
  return (all[0] | all[1] | all[2] | all[3] | all[4] | all[5] | all[6] | all[7]) != 0;
}

void read(benchmark::State& state) {
  Buffer tensor(kTensorBytes);
  std::memset(tensor.bytes(), 1, kTensorBytes);
  for (auto _ : state) {
    benchmark::DoNotOptimize(any_bit(tensor.bytes(), kTensorBytes));
  }
  count_bytes(state, kTensorBytes);
}

void copy(benchmark::State& state) {
  Buffer from(kTensorBytes), to(kTensorBytes);
  std::memset(from.bytes(), 1, kTensorBytes);
  std::memset(to.bytes(), 1, kTensorBytes);
  for (auto _ : state) {
    std::memcpy(to.bytes(), from.bytes(), kTensorBytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, kTensorBytes);
}

/// A tensor in which each block is non-zero with this probability, by one element at a random
/// place.
Buffer sparse_tensor(double density) {
  Buffer tensor(kTensorBytes);
  std::memset(tensor.bytes(), 0, kTensorBytes);
  std::mt19937_64 random(1);
  std::bernoulli_distribution nonzero(density);
  auto* elements = reinterpret_cast<float*>(tensor.bytes());
  for (std::size_t i = 0; i < kTensorBytes / sizeof(float); i += kBlockElements)
    if (nonzero(random)) elements[i + random() % kBlockElements] = 1;
  return tensor;
}

/// Searches the blocks that are not zero; their share is in percent.
void search(benchmark::State& state) {
  Buffer memory = sparse_tensor(static_cast<double>(state.range(0)) / 100);
  const numeric::BlockedTensor tensor{memory.bytes(), kTensorBytes / sizeof(float), kBlockElements,
                                      ElementType::kFloat32};
  std::vector<std::uint64_t> bits(tensor.block_count() / 64 + 1);
  for (auto _ : state) {
    std::fill(bits.begin(), bits.end(), 0);
    benchmark::DoNotOptimize(
        numeric::mark_nonzero_blocks(tensor, 0, tensor.block_count(), bits.data()));
    benchmark::ClobberMemory();
  }
  count_bytes(state, kTensorBytes);
}

/// The blocks of one packet from each of several ranks, summed in order and stored.
void sum(benchmark::State& state, ElementType type) {
  const numeric::BlockReduction& kernels = numeric::block_reduction(type, Reduction::kSum);
  const auto ranks = static_cast<std::size_t>(state.range(0));
  const std::size_t bytes = kBlocksPerPacket * kBlockElements * element_bytes(type);
  Buffer in(ranks * bytes), accumulator(2 * bytes), out(bytes);
  std::memset(in.bytes(), 0, ranks * bytes);
  for (auto _ : state) {
    constexpr std::size_t kCount = kBlocksPerPacket * kBlockElements;
    kernels.load(accumulator.bytes(), in.bytes(), kCount);
    for (std::size_t rank = 1; rank < ranks; ++rank)
      kernels.combine(accumulator.bytes(), in.bytes() + rank * bytes, kCount);
    kernels.store(out.bytes(), accumulator.bytes(), kCount, 1);
    benchmark::ClobberMemory();
  }
  count_bytes(state, ranks * bytes);
}

/// Reads two tensors and writes both: the least work of a compressor with error feedback.
[[gnu::target_clones("avx512f", "avx2", "default")]] void exchange(std::byte* a, std::byte* b,
                                                                   std::size_t size) {
  auto* these = reinterpret_cast<Words*>(a);
  auto* those = reinterpret_cast<Words*>(b);
  for (std::size_t i = 0; i < size / sizeof(Words); ++i) {
    const Words kept = these[i];
    these[i] = those[i];
    those[i] = kept;
  }
}

Buffer normal_tensor(std::uint64_t seed) {
  Buffer tensor(kTensorBytes);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::array<float, 4099> values{};
  for (float& value : values) value = normal(random);
  auto* elements = reinterpret_cast<float*>(tensor.bytes());
  for (std::size_t i = 0; i < kTensorBytes / sizeof(float); ++i)
    elements[i] = values[i % values.size()];
  return tensor;
}

/// Both move four times the tensor's bytes: they read and write gradients and residual in place, in
/// so many sequences side by side.
void feedback_alone(benchmark::State& state) {
  Buffer gradients = normal_tensor(1), residual = normal_tensor(2);
  const auto sequences = static_cast<std::size_t>(state.range(0));
  constexpr std::size_t kPiece = kBlockElements * sizeof(float);
  for (auto _ : state) {
    for (std::size_t i = 0; i < kTensorBytes / sequences; i += kPiece)
      for (std::size_t s = 0; s < sequences; ++s) {
        const std::size_t at = s * (kTensorBytes / sequences) + i;
        exchange(gradients.bytes() + at, residual.bytes() + at, kPiece);
      }
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * kTensorBytes);
}

/// Sends blocks above a norm; their share in the first pass is in percent.
void threshold(benchmark::State& state) {
  Buffer gradients = normal_tensor(1), residual = normal_tensor(2);
  const numeric::FeedbackBlocks blocks{
      reinterpret_cast<const float*>(gradients.bytes()), reinterpret_cast<float*>(residual.bytes()),
      reinterpret_cast<float*>(gradients.bytes()), kTensorBytes / sizeof(float), kBlockElements};
  std::vector<double> energies(blocks.block_count());
  numeric::block_energies(blocks, energies.data());
  const auto rank = energies.size() * static_cast<std::size_t>(100 - state.range(0)) / 100;
  const auto limit = energies.begin() + static_cast<std::ptrdiff_t>(rank);
  if (limit != energies.end()) std::nth_element(energies.begin(), limit, energies.end());
  const double energy = limit != energies.end() ? *limit : 1e300;
  std::vector<std::uint64_t> chosen(energies.size() / 64 + 1);
  for (auto _ : state) {
    std::fill(chosen.begin(), chosen.end(), ~std::uint64_t{0});
    benchmark::DoNotOptimize(numeric::keep_blocks(blocks, energy, chosen.data()));
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * kTensorBytes);
}

void register_all() {
  benchmark::AddCustomContext("simd_target", numeric::simd_target());
  benchmark::RegisterBenchmark("read", read);
  benchmark::RegisterBenchmark("copy", copy);
  benchmark::RegisterBenchmark("search", search)->ArgName("percent")->Arg(0)->Arg(1)->Arg(10);
  benchmark::RegisterBenchmark("feedback_alone", feedback_alone)
      ->ArgName("sequences")
      ->Arg(1)
      ->Arg(4);
  benchmark::RegisterBenchmark("threshold", threshold)->ArgName("percent")->Arg(0)->Arg(1)->Arg(10);
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kFloat64, ElementType::kFloat16, ElementType::kBFloat16,
        ElementType::kInt32, ElementType::kInt64, ElementType::kInt8})
    benchmark::RegisterBenchmark(("sum/" + std::string(name(type))).c_str(), sum, type)
        ->ArgName("ranks")
        ->Arg(2)
        ->Arg(8);
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
