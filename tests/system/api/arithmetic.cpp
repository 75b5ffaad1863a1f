// Results: every type, reduction and size; the caller's bitmap; the statistics of an op.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "tests/system/api/check.hpp"
#include "tests/system/api/tensors.hpp"

namespace sluice::api_test {
namespace {

/// The reductions whose results are exact for these tensors, and the same in int and in the type.
template <class T>
bool is_exact(Reduction reduction) {
  constexpr ElementType kType = ElementTypeOf<T>::kValue;
  if (!is_valid(kType, reduction)) return false;
  // Not exact in 16 bits.
  if (reduction == Reduction::kProduct) return !is_float(kType);
  if (reduction == Reduction::kAverage) return kType != ElementType::kUInt8;  // these are modulo
  const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax;
  return !(compares && kType == ElementType::kUInt8);
}

std::string describe(ElementType type, std::uint64_t count, Reduction reduction, bool in_place) {
  return std::string(name(type)) + " " + std::string(name(reduction)) + " of " +
         std::to_string(count) + " elements " + (in_place ? "in place" : "out of place");
}

template <class T>
void reduce(Communicator& job, std::uint64_t count, Reduction reduction, bool in_place) {
  constexpr ElementType kType = ElementTypeOf<T>::kValue;
  const std::uint32_t block = job.block_elements(kType);
  std::vector<T> input = input_of<T>(count, job.rank(), job.world_size(), block);
  const std::vector<T> before = input;
  std::vector<T> output(count, encode<T>(99));
  ReduceOptions options;
  options.reduction = reduction;
  if (in_place)
    job.all_reduce(std::span(input), options).wait();
  else
    job.all_reduce(std::span<const T>(input), std::span(output), options).wait();
  const std::string what = describe(kType, count, reduction, in_place);
  check(wrong_elements(in_place ? input : output, job.world_size(), block, reduction) == 0, what);
  check(in_place || input == before, what + ": the input was changed");
}

template <class T>
void every_reduction(Communicator& job) {
  for (int r = 1; r <= 8; ++r)
    for (const bool in_place : {false, true})
      if (const auto reduction = static_cast<Reduction>(r); is_exact<T>(reduction))
        reduce<T>(job, 5000, reduction, in_place);
}

template <class T>
void sizes(Communicator& job) {
  const std::uint64_t block = job.block_elements(ElementTypeOf<T>::kValue);
  const std::uint64_t mebibyte = (1 << 20) / sizeof(T);
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, block - 1, block, block + 1,
                                    7 * block + 3, 3 * mebibyte + 1, 4 * mebibyte})
    for (const bool in_place : {false, true}) reduce<T>(job, count, Reduction::kSum, in_place);
}

/// The parts into which the ranks cut their tensors: empty, of one element, and uneven.
std::vector<std::uint64_t> uneven_counts(unsigned ranks, std::uint64_t unit) {
  std::vector<std::uint64_t> counts(ranks);
  for (unsigned r = 0; r < ranks; ++r) counts[r] = r % 3 == 1 ? r / 3 : unit * (r + 1);
  return counts;
}

template <class T>
void reduce_to(Communicator& job, std::uint16_t root, std::uint64_t count, bool in_place) {
  constexpr ElementType kType = ElementTypeOf<T>::kValue;
  const std::uint32_t block = job.block_elements(kType);
  std::vector<T> input = input_of<T>(count, job.rank(), job.world_size(), block);
  const std::vector<T> before = input;
  std::vector<T> output(count, encode<T>(99));
  const bool is_root = job.rank() == root;
  T* const result = !is_root ? nullptr : in_place ? input.data() : output.data();
  job.reduce(input.data(), result, count, kType, root).wait();
  const std::string what = "reduce of " + describe(kType, count, Reduction::kSum, in_place);
  if (is_root) check(wrong_elements(in_place ? input : output, job.world_size(), block) == 0, what);
  check((is_root && in_place) || input == before, what + ": the input was changed");
}

template <class T>
void reduce_and_scatter(Communicator& job, std::uint64_t unit, bool in_place) {
  constexpr ElementType kType = ElementTypeOf<T>::kValue;
  const std::uint16_t ranks = job.world_size();
  const std::uint32_t block = job.block_elements(kType);
  const std::vector<std::uint64_t> counts = uneven_counts(ranks, unit);
  const auto own = counts.begin() + job.rank();
  const std::uint64_t begin = std::accumulate(counts.begin(), own, std::uint64_t{0});
  const std::uint64_t total = std::accumulate(own, counts.end(), begin);
  std::vector<T> input = input_of<T>(total, job.rank(), ranks, block);
  const std::vector<T> before = input;
  std::vector<T> output(*own, encode<T>(99));
  T* const part = in_place ? input.data() + begin : output.data();
  job.reduce_scatter(input.data(), part, counts, kType).wait();
  const std::string what = "reduce_scatter of " + describe(kType, total, Reduction::kSum, in_place);
  for (std::uint64_t i = 0; i < total; ++i) {
    const bool is_ours = i >= begin && i - begin < *own;
    const T sum = encode<T>(reduced(i, ranks, block, Reduction::kSum));
    if (is_ours) check(part[i - begin] == sum, what);
    check((is_ours && in_place) || input[i] == before[i], what + ": the input was changed");
  }
}

/// Whether the op took at most so many bytes. Repeated packets count, too, so it may have taken
/// more if the machine stood still.
bool took_at_most(const OpStatistics& statistics, std::uint64_t bytes, std::uint64_t limit) {
  return bytes <= limit || statistics.retransmissions != 0;
}

}  // namespace

/// Tensors in memory of sluice::allocate, at any alignment, and in ordinary memory.
void tensors_that_daemons_may_read(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::uint32_t block = job.block_elements(ElementType::kFloat32);
  using Tensor = std::vector<float, Allocator<float>>;
  for (const std::size_t count : {1, 5'000, 300'001}) {
    const auto values = input_of<float>(count, job.rank(), job.world_size(), block);
    for (const std::size_t begin : {0, 1, 1'000}) {
      Tensor input(begin + count, 99.0F);
      std::copy(values.begin(), values.end(), input.begin() + static_cast<std::ptrdiff_t>(begin));
      const Tensor before = input;
      Tensor output(count);
      std::vector<float> ordinary(count);
      const auto own = std::span(input).subspan(begin);
      job.all_reduce(std::span<const float>(own), std::span(output)).wait();
      job.all_reduce(std::span<const float>(own), std::span(ordinary)).wait();
      check(input == before, "the input was changed");
      job.all_reduce(own).wait();
      const std::string what = std::to_string(count) + " elements at " + std::to_string(begin);
      check(wrong_elements(ordinary, job.world_size(), block) == 0, "to ordinary memory: " + what);
      check(std::equal(output.begin(), output.end(), ordinary.begin()), "out of place: " + what);
      check(std::equal(own.begin(), own.end(), ordinary.begin()), "in place: " + what);
      check(std::equal(input.begin(), input.end() - static_cast<std::ptrdiff_t>(count),
                       before.begin()),
            "the elements before: " + what);
    }
  }
  const Error error =
      error_of(ErrorCode::kInvalidArgument, "an alignment of 48", [] { allocate(10, 48); });
  check_says(error, "48");
  check(!is_allocated(nullptr) && !is_allocated(&job), "others' memory");
}

void reduces_to_every_root(const Setting& setting) {
  Communicator job = setting.join(1);
  for (std::uint16_t root = 0; root < job.world_size(); ++root)
    for (const std::uint64_t count : {0, 1, 256, 50'001})
      for (const bool in_place : {false, true}) {
        reduce_to<float>(job, root, count, in_place);
        reduce_to<Float16>(job, root, count, in_place);
        reduce_to<std::int8_t>(job, root, count, in_place);
      }
}

void reduces_and_scatters(const Setting& setting) {
  Communicator job = setting.join(1);
  for (const std::uint64_t unit : {0, 1, 300, 20'011})
    for (const bool in_place : {false, true}) {
      reduce_and_scatter<float>(job, unit, in_place);
      reduce_and_scatter<BFloat16>(job, unit, in_place);
      reduce_and_scatter<std::int64_t>(job, unit, in_place);
    }
}

/// Checks what arrives: a rank gets the sums that it wants, and little more than headers of others.
void sums_go_to_those_who_want_them(const Setting& setting) {
  Communicator job = setting.join(1);
  constexpr std::uint64_t kPart = 1 << 18;
  constexpr std::uint64_t kPartBytes = kPart * sizeof(float);
  const std::uint64_t ranks = job.world_size();
  const std::vector<float> input(kPart * ranks, 1);
  std::vector<float> output(input.size());
  // Blocks between two parts, and those that travel together with another rank's, may come, too.
  const auto check_received = [&](const std::string& what, const Work& work,
                                  std::uint64_t lacking) {
    work.wait();
    const OpStatistics statistics = work.statistics();
    const std::uint64_t got = statistics.bytes_received;
    const std::uint64_t most = lacking + lacking / 8 + (ranks * kPartBytes - lacking) / 8 + 16'384;
    check(setting.has_hosts || (got >= lacking && took_at_most(statistics, got, most)),
          what + ": " + std::to_string(got) + " bytes came for " + std::to_string(lacking));
  };
  const bool is_root = job.rank() == 1;
  check_received("reduce",
                 job.reduce(input.data(), is_root ? output.data() : nullptr, input.size(),
                            ElementType::kFloat32, 1),
                 is_root ? ranks * kPartBytes : 0);
  check_received("broadcast", job.broadcast(std::span(output), 1),
                 is_root ? 0 : ranks * kPartBytes);
  const std::vector<std::uint64_t> parts(ranks, kPart);
  check_received("reduce_scatter",
                 job.reduce_scatter(input.data(), output.data(), parts, ElementType::kFloat32),
                 kPartBytes);
  check_received(
      "gather",
      job.gather(input.data(), is_root ? output.data() : nullptr, parts, ElementType::kFloat32, 1),
      is_root ? (ranks - 1) * kPartBytes : 0);
  check_received("all_gather",
                 job.all_gather(input.data(), output.data(), parts, ElementType::kFloat32),
                 (ranks - 1) * kPartBytes);
  check_received(
      "scatter",
      job.scatter(is_root ? input.data() : nullptr, output.data(), parts, ElementType::kFloat32, 1),
      is_root ? 0 : kPartBytes);
  const std::vector<std::uint64_t> pairs(ranks * ranks, kPart / ranks);
  check_received("all_to_all",
                 job.all_to_all(input.data(), output.data(), pairs, ElementType::kFloat32),
                 pairs[0] * (ranks - 1) * sizeof(float));
}

/// A tensor of bytes; nearly all pages are zero and take no memory.
void beyond_2_to_the_31_elements(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::uint64_t count = (std::uint64_t{1} << 31) + 12'345;
  void* const memory = mmap(nullptr, count, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(memory != MAP_FAILED, "address space for a large tensor");
  const std::span<std::int8_t> tensor(static_cast<std::int8_t*>(memory), count);
  const std::uint64_t places[] = {0, std::uint64_t{1} << 30, count - 12'345, count - 1};
  for (const std::uint64_t place : places) tensor[place] = static_cast<std::int8_t>(job.rank() + 1);
  const Work work = job.all_reduce(tensor);
  work.wait();
  const int sum = job.world_size() * (job.world_size() + 1) / 2;
  for (const std::uint64_t place : places) check(tensor[place] == sum, "a sum beyond 2^31");
  check(setting.has_hosts || work.statistics().blocks_received == std::size(places),
        "blocks received");
  munmap(memory, count);
}

void every_type_and_reduction(const Setting& setting) {
  Communicator job = setting.join(1);
  every_reduction<float>(job);
  every_reduction<double>(job);
  every_reduction<Float16>(job);
  every_reduction<BFloat16>(job);
  every_reduction<std::int32_t>(job);
  every_reduction<std::int64_t>(job);
  every_reduction<std::int8_t>(job);
  every_reduction<std::uint8_t>(job);
  every_reduction<std::int16_t>(job);
}

namespace {

/// Extreme values, whose sum the type cannot represent.
template <class T>
void average(Communicator& job) {
  using Limits = std::numeric_limits<T>;
  constexpr std::uint64_t kCount = 3001;
  const T large = Limits::max() / 4 * 3;
  std::vector<T> tensor(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i)
    tensor[i] = std::array{Limits::max(), Limits::min(), large}[i % 3];
  const std::vector<T> expected = tensor;
  ReduceOptions options;
  options.reduction = Reduction::kAverage;
  job.all_reduce(std::span(tensor), options).wait();
  check(tensor == expected, "the average of extreme values of " +
                                std::string(name(ElementTypeOf<T>::kValue)) + ": " +
                                std::to_string(tensor[0]) + ", " + std::to_string(tensor[1]));
}

/// Tensors of -0. Every 500th element has rank 0's sign, so that its block travels.
template <class T>
void reduce_negative_zeros(Communicator& job, Reduction reduction, std::uint16_t block) {
  constexpr std::uint64_t kCount = 2500;
  constexpr std::size_t kSignByte = sizeof(T) - 1;
  std::vector<T> tensor(kCount);
  for (T& element : tensor) reinterpret_cast<std::uint8_t*>(&element)[kSignByte] = 0x80;
  if (job.rank() == 0)
    for (std::uint64_t i = 0; i < kCount; i += 500) tensor[i] = encode<T>(1);
  ReduceOptions options;
  options.reduction = reduction;
  options.block_elements = block;
  job.all_reduce(std::span(tensor), options).wait();
  for (std::uint64_t i = 0; i < kCount; ++i)
    if (i % 500 != 0)
      check(tensor[i] == T{} && reinterpret_cast<std::uint8_t*>(&tensor[i])[kSignByte] == 0,
            describe(ElementTypeOf<T>::kValue, kCount, reduction, true) + " in blocks of " +
                std::to_string(block) + ": element " + std::to_string(i) + " is -0");
}

}  // namespace

void averages_of_integers_are_exact(const Setting& setting) {
  Communicator job = setting.join(1);
  average<std::int8_t>(job);
  average<std::uint8_t>(job);
  average<std::int16_t>(job);
  average<std::int32_t>(job);
  average<std::int64_t>(job);
}

void no_reduction_is_negative_zero(const Setting& setting) {
  Communicator job = setting.join(1);
  for (const std::uint16_t block : std::array<std::uint16_t, 4>{1, 10, 256, 2000})
    for (int r = 1; r <= 5; ++r) {
      const auto reduction = static_cast<Reduction>(r);
      reduce_negative_zeros<float>(job, reduction, block);
      reduce_negative_zeros<double>(job, reduction, block);
      reduce_negative_zeros<Float16>(job, reduction, block);
      reduce_negative_zeros<BFloat16>(job, reduction, block);
    }
}

void every_size(const Setting& setting) {
  Communicator job = setting.join(1);
  sizes<float>(job);
  sizes<double>(job);
  sizes<BFloat16>(job);
}

void bitmap_spares_the_search(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::uint32_t block = job.block_elements(ElementType::kFloat32);
  constexpr std::uint64_t kBlocks = 200;
  const std::uint64_t count = kBlocks * block - 1;
  for (const bool exact : {true, false}) {  // a set bit may belong to a zero block
    std::vector<float> tensor = input_of<float>(count, job.rank(), job.world_size(), block);
    std::vector<std::uint64_t> bitmap((kBlocks + 63) / 64);
    for (std::uint64_t i = 0; i < count; ++i)
      if (!exact || tensor[i] != 0) bitmap[i / block / 64] |= std::uint64_t{1} << (i / block % 64);
    ReduceOptions options;
    options.nonzero_blocks = bitmap;
    const Work work = job.all_reduce(std::span(tensor), options);
    work.wait();
    check(wrong_elements(tensor, job.world_size(), block) == 0, "with a bitmap");
    const std::uint64_t sent = work.statistics().blocks_sent;
    check(setting.has_hosts || (exact ? sent < kBlocks : sent == kBlocks),
          std::to_string(sent) + " blocks were sent, which is not what the bitmap says");
  }
}

/// Element i of a rank; the largest magnitude in each block is about 1000 * (rank + 1).
float uneven(std::uint64_t i, std::uint16_t rank) {
  const auto digits = static_cast<float>((i * 7919 + rank * 104729u) % 2001) - 1000;
  return digits * static_cast<float>(rank + 1) * 1.0009F;
}

/// All ranks get the same bits, which are within the bound; the blocks take fewer bytes.
void sums_of_few_bits(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::uint16_t ranks = job.world_size();
  constexpr std::uint64_t kCount = 50'001;
  std::vector<float> mine(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) mine[i] = uneven(i, job.rank());
  constexpr std::pair<Encoding, double> kLost[] = {{Encoding::kFloat16, 0x1p-11},
                                                   {Encoding::kBFloat16, 0x1p-8},
                                                   {Encoding::kInt8, 1.0 / 127},
                                                   {Encoding::kInt4, 1.0 / 7}};
  for (const auto& [encoding, lost] : kLost)
    for (const std::uint64_t seed : {0, 5}) {
      if (seed != 0 && !is_scaled(encoding)) continue;
      ReduceOptions options;
      options.encoding = encoding;
      options.rounding_seed = seed;
      std::vector<float> sums(kCount);
      const Work work = job.all_reduce(std::span<const float>(mine), std::span(sums), options);
      work.wait();
      const double most = 1001.0 * ranks * (ranks + 1) / 2;  // of all ranks together
      const double bound = 2.01 * most * lost * (seed == 0 ? 1 : 2);
      for (std::uint64_t i = 0; i < kCount; ++i) {
        double exact = 0;
        for (std::uint16_t r = 0; r < ranks; ++r) exact += static_cast<double>(uneven(i, r));
        check(std::abs(static_cast<double>(sums[i]) - exact) <= bound,
              std::string(name(encoding)) + ": element " + std::to_string(i) + " is off too far");
      }
      const OpStatistics statistics = work.statistics();
      check(took_at_most(statistics, statistics.bytes_sent,
                         kCount * sizeof(float) * (is_scaled(encoding) ? 3 : 6) / 10),
            std::string(name(encoding)) + " saves no bytes");
      std::vector<std::int32_t> least(kCount), largest(kCount);
      std::memcpy(least.data(), sums.data(), kCount * sizeof(float));
      largest = least;
      ReduceOptions of_bits;
      of_bits.reduction = Reduction::kMin;
      job.all_reduce(std::span(least), of_bits).wait();
      of_bits.reduction = Reduction::kMax;
      job.all_reduce(std::span(largest), of_bits).wait();
      check(least == largest, std::string(name(encoding)) + ": ranks have other bits");
    }
}

/// A table: each rank has every ranks-th row, and no other rank has it. With blocks of one row,
/// each rank sends only its own.
void blocks_are_as_large_as_the_op_says(const Setting& setting) {
  Communicator job = setting.join(1);
  constexpr std::uint64_t kRows = 1000;
  for (const std::uint16_t row : {std::uint16_t{1}, std::uint16_t{24}, std::uint16_t{300}}) {
    std::vector<float> table(kRows * row);
    std::uint64_t own = 0;
    for (std::uint64_t r = job.rank(); r < kRows; r += job.world_size(), ++own)
      std::fill_n(table.begin() + static_cast<std::ptrdiff_t>(r * row), row,
                  static_cast<float>(r + 1));
    ReduceOptions options;
    options.block_elements = row;
    check(job.block_elements(ElementType::kFloat32, row) == row, "a row fits a packet");
    const Work work = job.all_reduce(std::span(table), options);
    work.wait();
    for (std::uint64_t i = 0; i < table.size(); ++i)
      check(table[i] == static_cast<float>(i / row + 1), "element " + std::to_string(i));
    const OpStatistics cost = work.statistics();
    check(!setting.has_aggregators || setting.has_hosts ||  // small blocks are counted together
              (cost.blocks == kRows && cost.blocks_sent == own && cost.blocks_received == kRows),
          "rows of " + std::to_string(row) + ": " + std::to_string(cost.blocks_sent) +
              " blocks sent, " + std::to_string(cost.blocks_received) + " received");
  }
  const std::uint32_t fits = job.block_elements(ElementType::kFloat64, 16'384);
  check(fits < 16'384 && 16'384 % fits == 0, "what fits no packet is halved until it does");
  std::vector<double> tensor(100'000, 1);
  ReduceOptions options;
  options.block_elements = 16'384;
  job.all_reduce(std::span(tensor), options).wait();
  check(std::all_of(tensor.begin(), tensor.end(), [&](double x) { return x == job.world_size(); }),
        "in the largest blocks that there are");
}

/// Rank r owns blocks 0 and r + 1 of 32; each rank that carries a share counts the blocks of its
/// share.
void check_share(Communicator& job, const OpStatistics& share) {
  std::vector<std::int64_t> of_all;
  for (const std::uint64_t own : {share.blocks, share.blocks_sent, share.blocks_received})
    of_all.push_back(static_cast<std::int64_t>(own));
  job.all_reduce(std::span(of_all)).wait();
  const std::int64_t hosts = of_all[0] / 32;
  check(hosts > 1 && of_all[0] % 32 == 0, "the shares of a host are all blocks");
  check(of_all[1] == job.world_size() + hosts, "blocks sent: " + std::to_string(of_all[1]));
  check(of_all[2] == hosts * (1 + job.world_size()),
        "blocks received: " + std::to_string(of_all[2]));
}

void statistics_count_blocks(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::uint32_t block = job.block_elements(ElementType::kFloat32);
  std::vector<float> tensor(32 * std::size_t{block});
  tensor[0] = 1;
  tensor[(job.rank() + 1u) * block] = 2;
  const Work work = job.all_reduce(std::span(tensor));
  work.wait();
  check(work.done() && !work.error(), "an op that was waited for is done, without an error");
  const OpStatistics s = work.statistics();
  if (setting.has_hosts) return check_share(job, s);
  check(s.blocks == 32, "blocks: " + std::to_string(s.blocks));
  check(s.blocks_sent == 2, "blocks sent: " + std::to_string(s.blocks_sent));
  check(s.blocks_received == 1u + job.world_size(),
        "blocks received: " + std::to_string(s.blocks_received));
  check(s.density() == 2.0 / 32, "density");
  check(s.union_density() == (1.0 + job.world_size()) / 32, "union density");
  check(s.duration.count() > 0, "duration");
  check((s.packets_sent > 0) == setting.has_aggregators &&
            (s.packets_received > 0) == setting.has_aggregators,
        "packets");
  const std::uint64_t payload = block * sizeof(float);
  check(s.bytes_sent >= 2 * payload && took_at_most(s, s.bytes_sent, 6 * payload),
        "bytes sent: " + std::to_string(s.bytes_sent));
  // Blocks that only this rank has need not come back.
  check(s.bytes_received > (s.blocks_received - s.blocks_sent) * payload,
        "bytes received: " + std::to_string(s.bytes_received));

  const Work nothing = job.barrier();
  nothing.wait();
  check(nothing.statistics().blocks == 0 && nothing.statistics().density() == 0, "a barrier's");
}

}  // namespace sluice::api_test
