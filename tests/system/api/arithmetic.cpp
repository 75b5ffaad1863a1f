// Results: every type, reduction and size; the caller's bitmap; what an op counts.
#include <span>

#include "tests/system/api/check.hpp"
#include "tests/system/api/tensors.hpp"

namespace sluice::api_test {
namespace {

/// Those of which the tensors' results are exact, and alike in int and in the type.
template <class T>
bool is_exact(Reduction reduction) {
  constexpr ElementType kType = ElementTypeOf<T>::kValue;
  if (!is_valid(kType, reduction)) return false;
  if (reduction == Reduction::kProduct) return !is_float(kType);  // a float's may be -0
  if (reduction == Reduction::kAverage) return sizeof(T) > 1;     // the sum of bytes wraps
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
  AllReduceOptions options;
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

}  // namespace

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
  for (const bool exact : {true, false}) {  // a set bit may be of a block that is zero
    std::vector<float> tensor = input_of<float>(count, job.rank(), job.world_size(), block);
    std::vector<std::uint64_t> bitmap((kBlocks + 63) / 64);
    for (std::uint64_t i = 0; i < count; ++i)
      if (!exact || tensor[i] != 0) bitmap[i / block / 64] |= std::uint64_t{1} << (i / block % 64);
    AllReduceOptions options;
    options.nonzero_blocks = bitmap;
    const Work work = job.all_reduce(std::span(tensor), options);
    work.wait();
    check(wrong_elements(tensor, job.world_size(), block) == 0, "with a bitmap");
    const std::uint64_t sent = work.statistics().blocks_sent;
    check(exact ? sent < kBlocks : sent == kBlocks,
          std::to_string(sent) + " blocks were sent, which is not what the bitmap says");
  }
}

/// Rank r owns blocks 0 and r + 1 of 32.
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
  check(s.blocks == 32, "blocks: " + std::to_string(s.blocks));
  check(s.blocks_sent == 2, "blocks sent: " + std::to_string(s.blocks_sent));
  check(s.blocks_received == 1u + job.world_size(),
        "blocks received: " + std::to_string(s.blocks_received));
  check(s.density() == 2.0 / 32, "density");
  check(s.union_density() == (1.0 + job.world_size()) / 32, "union density");
  check(s.duration.count() > 0, "duration");
  check(s.packets_sent > 0 && s.packets_received > 0, "packets");
  const std::uint64_t payload = block * sizeof(float);
  check(s.bytes_sent > 2 * payload && s.bytes_sent < 6 * payload,
        "bytes sent: " + std::to_string(s.bytes_sent));
  check(s.bytes_received > s.blocks_received * payload,
        "bytes received: " + std::to_string(s.bytes_received));

  const Work nothing = job.barrier();
  nothing.wait();
  check(nothing.statistics().blocks == 0 && nothing.statistics().density() == 0, "a barrier's");
}

}  // namespace sluice::api_test
