// sluice-perf without the library under test: its command line, its tensors, its reference and its
// report. Expected values are worked out by hand.
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <sluice/error.hpp>

#include "bench/json_file.hpp"
#include "bench/perf/element.hpp"
#include "bench/perf/pattern.hpp"
#include "bench/perf/perf_options.hpp"
#include "bench/perf/perf_report.hpp"
#include "bench/perf/reference_block.hpp"
#include "bench/perf/tensors.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::perf::perf_tests {
namespace {

using Catch::Contains;

// --- command line ---------------------------------------------------------------------------

TEST_CASE("defaults are nccl-tests'") {
  const Options options = parse_options({});
  CHECK(options.sizes() == std::vector<std::uint64_t>{32U << 20});
  CHECK(options.iterations == 20);
  CHECK(options.warmup_iterations == 5);
  CHECK(options.check);
  CHECK(options.types == std::vector{ElementType::kFloat32});
  CHECK(options.reductions == std::vector{Reduction::kSum});
  CHECK(options.densities == std::vector{1.0});
  CHECK(options.in_place == std::vector{false, true});
  CHECK(options.memory == MemoryKind::kShared);
  CHECK_FALSE(options.block_elements);
  CHECK_FALSE(options.streams);
}

TEST_CASE("sizes step by a factor or by bytes") {
  const auto sizes = parse_options({"-b", "4", "-e", "64M", "-f", "4"}).sizes();
  REQUIRE(sizes.size() == 13);
  CHECK(sizes[1] == 16);
  CHECK(sizes.back() == 64U << 20);

  CHECK(parse_options({"-b", "1k", "-e", "2K", "-i", "512"}).sizes() ==
        std::vector<std::uint64_t>{1024, 1536, 2048});
  CHECK(parse_options({"-b", "3", "-e", "10", "-f", "2"}).sizes() ==
        std::vector<std::uint64_t>{3, 6});
  CHECK(parse_options({"-b", "0", "-e", "0", "-f", "2"}).sizes().front() == 0);
  CHECK(parse_options({"-b", "1G", "-e", "1024G", "-f", "1024"}).sizes().back() == 1ULL << 40);
}

TEST_CASE("every flag arrives") {
  const Options options = parse_options({"--iters=7", "-w",
                                         "0",         "-c",
                                         "0",         "-d",
                                         "all",       "-o",
                                         "avg",       "--density",
                                         "1,0.1,0",   "--overlap",
                                         "none",      "--block-elements",
                                         "64",        "--streams",
                                         "8",         "--in-place",
                                         "1",         "--memory",
                                         "ordinary",  "--bitmap",
                                         "--seed",    "18446744073709551615",
                                         "--json",    "out.json"});
  CHECK(options.iterations == 7);
  CHECK(options.warmup_iterations == 0);
  CHECK_FALSE(options.check);
  CHECK(options.types.size() == 9);
  CHECK(options.reductions == std::vector{Reduction::kAverage});
  CHECK(options.densities == std::vector{1.0, 0.1, 0.0});
  CHECK(options.overlap == Overlap::kNone);
  CHECK(options.block_elements == 64);
  CHECK(options.streams == 8);
  CHECK(options.in_place == std::vector{true});
  CHECK(options.memory == MemoryKind::kOrdinary);
  CHECK(options.bitmap);
  CHECK(options.seed == std::numeric_limits<std::uint64_t>::max());
  CHECK(options.json_path == "out.json");
}

TEST_CASE("a wrong value is refused in one line with flag, value and what is allowed") {
  const auto [flag, value, allowed] = GENERATE(table<std::string, std::string, std::string>({
      {"--minbytes", "4X", "0..1024G"},
      {"--minbytes", "64M", "1024G"},  // beyond --maxbytes, which is refused
      {"--maxbytes", "1025G", "1024G"},
      {"--maxbytes", "99999999999999999999", "1024G"},
      {"--maxbytes", "+1", "1024G"},
      {"--maxbytes", "", "1024G"},
      {"--stepfactor", "0", "1..1024"},
      {"--stepbytes", "0", "1..1024G"},
      {"--iters", "0", "1..1000000"},
      {"--iters", "1.5", "1..1000000"},
      {"--warmup_iters", "x", "0..1000000"},
      {"--check", "2", "0..1"},
      {"--datatype", "fp32",
       "float, double, half, bfloat16, int8, uint8, int16, int32, int64, all"},
      {"--op", "product", "sum, min, max, avg, prod, band, bor, bxor, all"},
      {"--density", "1.1", "0..1"},
      {"--density", "1,,0.1", "0..1"},
      {"--density", "nan", "0..1"},
      {"--density", "", "0..1"},
      {"--overlap", "some", "random, all, none, strided, zipf"},
      {"--encoding", "fp8", "none, half, bfloat16, int8, int4"},
      {"--rounding-seed", "1", "0, unless --encoding is int8 or int4"},
      {"--memory", "arena", "shared, ordinary"},
      {"--in-place", "2", "0, 1, both"},
      {"--block-elements", "0", "1..16384"},
      {"--block-elements", "16385", "1..16384"},
      {"--streams", "1025", "0..1024"},
      {"--seed", "18446744073709551616", "0..18446744073709551615"},
  }));
  const bool is_last_size = flag == "--minbytes" && value == "64M";
  const std::string named = is_last_size ? "--maxbytes '32M'" : flag + " '" + value + "'";
  CAPTURE(flag, value);
  try {
    parse_options({flag, value});
    FAIL("accepted");
  } catch (const UsageError& error) {
    CHECK_THAT(error.what(), Contains(allowed));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    CHECK_THAT(error.what(), Contains(named));
  }
}

TEST_CASE("sizes that cannot grow, unknown flags and stray words are refused") {
  CHECK_THROWS_WITH(parse_options({"-b", "0", "-f", "2"}), Contains("--minbytes '0'"));
  CHECK_THROWS_WITH(parse_options({"--sparsity", "1"}), Contains("--sparsity"));
  CHECK_THROWS_WITH(parse_options({"--iter", "1"}), Contains("--iter"));
  CHECK_THROWS_WITH(parse_options({"-n", "1", "-n", "2"}), Contains("--iters"));
  CHECK_THROWS_AS(parse_options({"-n"}), UsageError);
  CHECK_THROWS_AS(parse_options({"64M"}), UsageError);
}

TEST_CASE("help names every flag with its default") {
  CHECK(parse_options({"--help"}).help);
  CHECK(parse_options({"--version"}).version);
  for (const char* flag :
       {"--minbytes", "--maxbytes", "--stepfactor", "--stepbytes", "--datatype", "--op",
        "--density", "--overlap", "--memory", "--in-place", "--bitmap", "--block-elements",
        "--streams", "--iters", "--warmup_iters", "--check", "--seed", "--json"})
    CHECK_THAT(bench::to_text(help()), Contains(flag));
  CHECK_THAT(bench::to_text(help()), Contains("(=32M)"));
}

// --- pattern --------------------------------------------------------------------------------

std::set<std::uint64_t> blocks_of(const BlockPattern& pattern, std::uint16_t rank) {
  std::set<std::uint64_t> blocks;
  for (std::uint64_t b = 0; b < pattern.blocks(); ++b)
    if (pattern.nonzero(rank, b)) blocks.insert(b);
  return blocks;
}

TEST_CASE("each rank has exactly round(density * blocks) non-zero blocks") {
  const auto overlap =
      GENERATE(Overlap::kRandom, Overlap::kAll, Overlap::kNone, Overlap::kStrided, Overlap::kZipf);
  const double density = GENERATE(0.0, 0.01, 0.1, 0.5, 0.999, 1.0);
  for (const std::uint64_t blocks : {1U, 2U, 3U, 7U, 64U, 1000U, 4097U}) {
    const BlockPattern pattern(blocks, density, overlap, 5);
    const auto expected = static_cast<std::size_t>(std::llround(density * double(blocks)));
    for (const int rank : {0, 1, 255})
      CHECK(blocks_of(pattern, static_cast<std::uint16_t>(rank)).size() == expected);
  }
}

TEST_CASE("overlap decides how the ranks' blocks meet") {
  const auto sets = [](Overlap overlap, double density) {
    const BlockPattern pattern(1000, density, overlap, 9);
    return std::pair(blocks_of(pattern, 0), blocks_of(pattern, 1));
  };
  const auto common = [](const auto& pair) {
    std::size_t n = 0;
    for (const auto block : pair.first) n += pair.second.count(block);
    return n;
  };
  CHECK(common(sets(Overlap::kAll, 0.1)) == 100);
  CHECK(common(sets(Overlap::kNone, 0.1)) == 0);
  CHECK(common(sets(Overlap::kNone, 0.5)) == 0);
  CHECK(common(sets(Overlap::kNone, 0.6)) == 200);  // no more than must be
  CHECK(sets(Overlap::kStrided, 0.25).first == sets(Overlap::kStrided, 0.25).second);
  for (const auto block : sets(Overlap::kStrided, 0.25).first) CHECK(block % 4 == 0);
  const auto [zipf, zipf_of_other] = sets(Overlap::kZipf, 0.1);
  CHECK(*std::next(zipf.begin(), 50) < 100);  // a tenth of the blocks has half of them
  CHECK(zipf != zipf_of_other);
  const std::size_t random = common(sets(Overlap::kRandom, 0.5));
  CHECK(random > 200);  // 250 expected, standard deviation 8
  CHECK(random < 300);
}

TEST_CASE("positions are spread and follow the seed") {
  const auto blocks = blocks_of(BlockPattern(10'000, 0.1, Overlap::kRandom, 1), 0);
  std::vector<int> per_tenth(10);
  for (const auto block : blocks) ++per_tenth[block / 1000];
  for (const int n : per_tenth) {
    CHECK(n > 55);  // 100 expected, standard deviation 9
    CHECK(n < 145);
  }
  CHECK(blocks != blocks_of(BlockPattern(10'000, 0.1, Overlap::kRandom, 2), 0));
}

// --- tensors --------------------------------------------------------------------------------

TensorSpec small_spec(ElementType type) {
  return {.type = type,
          .elements = 1003,
          .block_elements = 10,
          .ranks = 3,
          .density = 0.3,
          .overlap = Overlap::kRandom,
          .seed = 11};
}

template <class T>
bool is_zero(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return value == 0;
  else
    return to_float(value) == 0;
}

template <class T>
std::vector<T> filled(const TensorSet& tensors, std::uint16_t rank, std::uint64_t run) {
  std::vector<T> tensor(tensors.spec().elements);
  tensors.fill(rank, run, std::as_writable_bytes(std::span(tensor)));
  return tensor;
}

TEMPLATE_TEST_CASE("a tensor's non-zero blocks are the pattern's", "", float, double, Float16,
                   BFloat16, std::int32_t, std::int64_t) {
  const TensorSet tensors(small_spec(ElementTypeOf<TestType>::kValue));
  const auto run = GENERATE(std::uint64_t{0}, std::uint64_t{1});
  const auto tensor = filled<TestType>(tensors, 1, run);
  const auto bitmap = tensors.bitmap(1);
  REQUIRE(tensors.pattern().blocks() == 101);
  REQUIRE(bitmap.size() == 2);
  std::uint64_t nonzero_blocks = 0;
  for (std::uint64_t block = 0; block < 101; ++block) {
    bool nonzero = false;
    for (std::size_t i = block * 10; i < std::min<std::size_t>(block * 10 + 10, 1003); ++i)
      nonzero |= !is_zero(tensor[i]);
    CHECK(nonzero == tensors.pattern().nonzero(1, block));
    CHECK(nonzero == ((bitmap[block / 64] >> (block % 64) & 1) == 1));
    nonzero_blocks += nonzero;
  }
  CHECK(nonzero_blocks == 30);
}

TEST_CASE("values depend on rank, run and seed, and on nothing else") {
  TensorSpec spec = small_spec(ElementType::kInt64);
  spec.density = 1;
  const TensorSet tensors(spec);
  const auto tensor = filled<std::int64_t>(tensors, 0, 1);
  CHECK(tensor == filled<std::int64_t>(TensorSet(spec), 0, 1));
  CHECK(tensor != filled<std::int64_t>(tensors, 1, 1));
  CHECK(tensor != filled<std::int64_t>(tensors, 0, 2));
  spec.seed = 12;
  CHECK(tensor != filled<std::int64_t>(TensorSet(spec), 0, 1));
}

TEST_CASE("zero blocks hold a -0 in run 0 only") {
  const TensorSet tensors(small_spec(ElementType::kFloat32));
  const auto negative_zeros = [&](std::uint64_t run) {
    const auto tensor = filled<float>(tensors, 0, run);
    std::size_t n = 0;
    for (std::uint64_t block = 0; block < 101; ++block)
      if (!tensors.pattern().nonzero(0, block))
        for (std::size_t i = block * 10; i < std::min<std::size_t>(block * 10 + 10, 1003); ++i)
          n += std::signbit(tensor[i]);
    return n;
  };
  CHECK(negative_zeros(0) == 71);
  CHECK(negative_zeros(1) == 0);
}

TEST_CASE("the order of summing shows in the floats") {
  TensorSpec spec = small_spec(ElementType::kFloat32);
  spec.density = 1;
  const TensorSet tensors(spec);
  const auto a = filled<float>(tensors, 0, 1);
  const auto b = filled<float>(tensors, 1, 1);
  const auto c = filled<float>(tensors, 2, 1);
  std::size_t differs = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    differs += (a[i] + b[i]) + c[i] != (c[i] + b[i]) + a[i];
  CHECK(differs > a.size() / 10);
}

// --- 16-bit floats --------------------------------------------------------------------------

TEST_CASE("every finite half and bfloat16 survives the way to float and back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    if ((bits & 0x7C00) != 0x7C00 || (bits & 0x3FF) == 0)
      REQUIRE(to_float16(to_float(half)) == half);
    const BFloat16 bfloat{static_cast<std::uint16_t>(bits)};
    if ((bits & 0x7F80) != 0x7F80 || (bits & 0x7F) == 0)
      REQUIRE(to_bfloat16(to_float(bfloat)) == bfloat);
  }
}

TEST_CASE("half: known values and ties to even") {
  CHECK(to_float(Float16{0x3C00}) == 1.0F);
  CHECK(to_float(Float16{0xC000}) == -2.0F);
  CHECK(to_float(Float16{0x7BFF}) == 65504.0F);
  CHECK(to_float(Float16{0x0001}) == 0x1p-24F);
  CHECK(std::isnan(to_float(Float16{0x7E00})));
  CHECK(to_float16(2049.0F).bits == to_float16(2048.0F).bits);    // tie, down to even
  CHECK(to_float16(2051.0F).bits == to_float16(2052.0F).bits);    // tie, up to even
  CHECK(to_float16(2049.001F).bits == to_float16(2050.0F).bits);  // above the tie
  CHECK(to_float16(65519.0F).bits == 0x7BFF);
  CHECK(to_float16(65520.0F).bits == 0x7C00);
  CHECK(to_float16(-1e9F).bits == 0xFC00);
  CHECK(to_float16(0x1p-25F).bits == 0);           // tie between 0 and the least subnormal
  CHECK(to_float16(0x1.8p-24F).bits == 2);         // tie, up to even
  CHECK(to_float16(0x1.FFFp-15F).bits == 0x0400);  // a subnormal that rounds up to normal
  CHECK(to_float16(-0.0F).bits == 0x8000);
  CHECK(to_float16(std::nanf("")).bits == 0x7E00);
}

TEST_CASE("bfloat16: ties to even") {
  CHECK(to_bfloat16(257.0F).bits == to_bfloat16(256.0F).bits);
  CHECK(to_bfloat16(259.0F).bits == to_bfloat16(260.0F).bits);
  CHECK(to_bfloat16(257.01F).bits == to_bfloat16(258.0F).bits);
  CHECK(to_bfloat16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(std::isnan(to_float(to_bfloat16(std::nanf("")))));
}

// --- reference ------------------------------------------------------------------------------

template <class T>
T reduced(Reduction reduction, std::uint16_t ranks, const std::vector<T>& owners) {
  ReferenceBlock<T> block(reduction, ranks, 1);
  for (const T& value : owners) block.add(std::span<const T>(&value, 1));
  T result;
  std::memset(static_cast<void*>(&result), 0xFF, sizeof result);
  block.result(std::span<T>(&result, 1));
  return result;
}

Float16 half(float value) {
  return to_float16(value);
}
BFloat16 bfloat(float value) {
  return to_bfloat16(value);
}

TEST_CASE("sums go in rank order, in the type's own precision") {
  CHECK(reduced<float>(Reduction::kSum, 3, {0x1p24F, 1, 1}) == 0x1p24F);
  CHECK(reduced<float>(Reduction::kSum, 3, {1, 1, 0x1p24F}) == 0x1p24F + 2);
  CHECK(reduced<double>(Reduction::kSum, 3, {0x1p53, 1, 1}) == 0x1p53);
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  CHECK(reduced<std::int32_t>(Reduction::kSum, 2, {kMax, 2}) == kMax * -1);
  CHECK(reduced<std::int64_t>(Reduction::kSum, 2, {std::int64_t{1} << 40, -5}) ==
        (std::int64_t{1} << 40) - 5);
}

TEST_CASE("16-bit floats accumulate as float and round once") {
  // Rounding each step would stay at 2048 and 256.
  CHECK(reduced<Float16>(Reduction::kSum, 3, {half(2048), half(1), half(1)}) == half(2050));
  CHECK(reduced<BFloat16>(Reduction::kSum, 3, {bfloat(256), bfloat(1), bfloat(1)}) == bfloat(258));
}

TEST_CASE("an average divides by all ranks before the single rounding") {
  CHECK(reduced<float>(Reduction::kAverage, 4, {1, 2}) == 0.75F);
  CHECK(reduced<float>(Reduction::kAverage, 3, {1}) == 1.0F / 3.0F);
  CHECK(reduced<Float16>(Reduction::kAverage, 2, {half(60000), half(60000)}) == half(60000));
  // (2048 + 3) / 2 = 1025.5 exactly; rounding the sum first would give 1026.
  CHECK(reduced<Float16>(Reduction::kAverage, 2, {half(2048), half(3)}) == half(1025.5F));
  CHECK(reduced<std::int32_t>(Reduction::kAverage, 2, {-4, -3}) == -3);  // towards zero
  CHECK(reduced<std::int64_t>(Reduction::kAverage, 4, {7}) == 1);
  CHECK(reduced<std::uint8_t>(Reduction::kAverage, 2, {200, 201}) == 200);  // nothing wraps
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  CHECK(reduced<std::int64_t>(Reduction::kAverage, 2, {kLeast, kLeast}) == kLeast);
}

TEST_CASE("ranks whose block is zero take part in min and max") {
  CHECK(reduced<float>(Reduction::kMin, 2, {3, 5}) == 3);
  CHECK(reduced<float>(Reduction::kMin, 3, {3, 5}) == 0);
  CHECK(reduced<float>(Reduction::kMax, 2, {-3, -5}) == -3);
  CHECK(reduced<float>(Reduction::kMax, 3, {-3, -5}) == 0);
  CHECK(reduced<std::int64_t>(Reduction::kMin, 3, {3, -5}) == -5);
  CHECK(reduced<Float16>(Reduction::kMax, 2, {half(-1)}) == half(0));
}

TEST_CASE("no reduction is -0") {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  const auto reduction =
      GENERATE(Reduction::kSum, Reduction::kMin, Reduction::kMax, Reduction::kAverage);
  CHECK(bits(reduced<float>(reduction, 2, {})) == 0);  // nobody's block
  CHECK(bits(reduced<float>(reduction, 2, {-0.0F, -0.0F})) == 0);
  CHECK(bits(reduced<float>(reduction, 2, {-0.0F})) == 0);
  CHECK(reduced<Float16>(reduction, 2, {half(-0.0F)}) == Float16{});
}

TEMPLATE_TEST_CASE("count_wrong accepts the reduction and counts each wrong element", "", float,
                   double, Float16, BFloat16, std::int32_t, std::int64_t, std::int8_t,
                   std::uint8_t) {
  const TensorSet tensors(small_spec(ElementTypeOf<TestType>::kValue));
  const auto reduction =
      GENERATE(Reduction::kSum, Reduction::kMin, Reduction::kMax, Reduction::kAverage);

  // The whole tensors at once, put together in another way than count_wrong does.
  std::vector<std::vector<TestType>> inputs;
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    inputs.push_back(filled<TestType>(tensors, rank, 0));
  std::vector<TestType> result(1003);
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::vector<TestType> owners;
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      if (tensors.pattern().nonzero(rank, i / 10)) owners.push_back(inputs[rank][i]);
    result[i] = reduced(reduction, 3, owners);
  }
  const auto wrong = [&](std::uint64_t run) {
    return count_wrong(tensors, run, reduction, std::as_bytes(std::span(result)));
  };
  REQUIRE(wrong(0) == 0);
  CHECK(wrong(1) > 20);  // the result of another run

  auto* bytes = reinterpret_cast<unsigned char*>(result.data());
  bytes[0] ^= 1;                               // the lowest bit of the first element
  bytes[1003 * sizeof(TestType) - 1] ^= 0x80;  // the sign of the last
  CHECK(wrong(0) == 2);
}

TEST_CASE("an encoding is one of float, and of sums") {
  const Options options =
      parse_options({"--encoding", "int4", "--rounding-seed", "5", "--op", "avg"});
  CHECK(options.encoding == Encoding::kInt4);
  CHECK(options.rounding_seed == 5);
  CHECK_THAT(table_header(options, 2), Contains(" encoding int4 "));
  CHECK_THROWS_WITH(parse_options({"--encoding", "int8", "-d", "half"}),
                    Contains("--encoding 'int8'") && Contains("--datatype is float"));
  CHECK_THROWS_WITH(parse_options({"--encoding", "int8", "-o", "max"}), Contains("sum or avg"));
}

TEST_CASE("count_beyond_bound takes what is within the bound, and no more") {
  const TensorSet tensors(small_spec(ElementType::kFloat32));
  std::vector<std::vector<float>> inputs;
  for (std::uint16_t rank = 0; rank < 3; ++rank) inputs.push_back(filled<float>(tensors, rank, 0));
  for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage})
    for (const Encoding encoding :
         {Encoding::kFloat16, Encoding::kBFloat16, Encoding::kInt8, Encoding::kInt4}) {
      const EncodedOp op{.reduction = reduction, .encoding = encoding};
      const double step = encoding == Encoding::kFloat16    ? 0x1p-11
                          : encoding == Encoding::kBFloat16 ? 0x1p-8
                          : encoding == Encoding::kInt8     ? 1.0 / 127
                                                            : 1.0 / 7;
      const double divisor = reduction == Reduction::kAverage ? 3 : 1;
      // Each element off by so many times what the ranks may lose in its block.
      const auto wrong = [&](double times) {
        std::vector<float> result(1003);
        for (std::size_t i = 0; i < result.size(); ++i) {
          double sum = 0, lost = 0;
          for (const auto& input : inputs) {
            double largest = 0;
            for (std::size_t e = i / 10 * 10; e < std::min<std::size_t>(i / 10 * 10 + 10, 1003);
                 ++e)
              largest = std::max(largest, std::fabs(double{input[e]}));
            sum += double{input[i]};
            lost += largest * step;
          }
          result[i] = static_cast<float>((sum + times * lost) / divisor);
        }
        return count_beyond_bound(tensors, 0, op, std::as_bytes(std::span(result)));
      };
      CAPTURE(name(encoding), name(reduction));
      CHECK(wrong(0) == 0);
      CHECK(wrong(1) == 0);
      CHECK(wrong(4) > 100);  // with what the sum may lose it is three times, about
    }
}

TEST_CASE("count_wrong tells -0 from +0 where nobody owns the block") {
  TensorSpec spec = small_spec(ElementType::kFloat32);
  spec.density = 0;
  const TensorSet tensors(spec);
  std::vector<float> result(1003, 0.0F);
  CHECK(count_wrong(tensors, 0, Reduction::kSum, std::as_bytes(std::span(result))) == 0);
  result[500] = -0.0F;
  CHECK(count_wrong(tensors, 0, Reduction::kSum, std::as_bytes(std::span(result))) == 1);
}

TEST_CASE("an empty tensor has nothing wrong") {
  TensorSpec spec = small_spec(ElementType::kFloat32);
  spec.elements = 0;
  const TensorSet tensors(spec);
  CHECK(tensors.bitmap(0).empty());
  CHECK(count_wrong(tensors, 0, Reduction::kSum, {}) == 0);
}

// --- report ---------------------------------------------------------------------------------

TEST_CASE("times are summarised") {
  const std::vector<std::int64_t> odd{3000, 1000, 2500};
  CHECK(summarise(odd).median == 2.5);
  CHECK(summarise(odd).min == 1.0);
  CHECK(summarise(odd).p99 == 3.0);
  const std::vector<std::int64_t> even{1000, 4000, 2000, 3000};
  CHECK(summarise(even).median == 2.5);
  std::vector<std::int64_t> many;
  for (std::int64_t i = 1; i <= 200; ++i) many.push_back(i * 1000);
  CHECK(summarise(many).p99 == 198.0);
}

Row example_row() {
  Row row;
  row.size_bytes = 1'000'000;
  row.count = 250'000;
  row.ranks = 4;
  row.density = 0.1;
  row.union_density = 0.34;
  row.iterations = 20;
  row.time_us = {.median = 500, .min = 400, .p99 = 900};
  row.memory = MemoryKind::kOrdinary;
  row.wrong = 0;
  row.wire_bytes = 123'456;
  row.retransmits = 7;
  return row;
}

TEST_CASE("bandwidths are nccl-tests'") {
  Row row = example_row();
  CHECK(row.algbw_gbps() == Approx(2.0));
  CHECK(row.busbw_gbps() == Approx(3.0));  // times 2 * 3/4
  row.ranks = 1;
  CHECK(row.busbw_gbps() == 0);
}

TEST_CASE("header and lines have the same columns") {
  const auto words = [](const std::string& line) {
    std::istringstream stream(line);
    return std::distance(std::istream_iterator<std::string>(stream), {});
  };
  const Options options = parse_options({});
  const std::string header = table_header(options, 4);
  CHECK_THAT(header, Contains(" memory shared "));
  std::istringstream lines(header);
  std::string line, columns;
  while (std::getline(lines, line))
    if (line.find("redop") != std::string::npos) columns = line;
  const std::vector<Row> variants{example_row(), example_row()};
  CHECK(words(columns) == words(table_line(variants)) + 1);  // and the '#'
  CHECK(columns.size() + 1 == table_line(variants).size());  // and the line's end
}

TEST_CASE("the footer says whether all was right") {
  std::vector<Row> rows{example_row(), example_row()};
  CHECK_THAT(table_footer(rows), Contains("# Out of bounds values : 0 OK\n"));
  CHECK_THAT(table_footer(rows), Contains("# Avg bus bandwidth    : 3\n"));
  rows[1].wrong = 5;
  CHECK_THAT(table_footer(rows), Contains("# Out of bounds values : 5 FAILED\n"));
  CHECK(total_wrong(rows) == 5);
  rows[0].wrong.reset();
  rows[1].wrong.reset();
  CHECK_THAT(table_footer(rows), Contains("not checked"));
  CHECK_THAT(table_line(rows), Contains("N/A"));
}

/// A directory of this test's own, gone afterwards.
class Scratch {
 public:
  Scratch()
      : path_(std::filesystem::temp_directory_path() /
              ("sluice-perf-test-" + std::to_string(::getpid()))) {
    REQUIRE(std::filesystem::create_directory(path_));
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* file) const { return (path_ / file).string(); }
  auto files() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }

 private:
  std::filesystem::path path_;
};

TEST_CASE("the JSON file is an array of rows and nothing is left beside it") {
  const Scratch scratch;
  const std::string path = scratch / "rows.json";
  bench::check_writable(path);
  CHECK(scratch.files() == 0);
  Row unchecked = example_row();
  unchecked.wrong.reset();
  const std::vector<Row> rows{example_row(), unchecked};
  write_json(path, rows);
  CHECK(scratch.files() == 1);

  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK(text.front() == '[');
  for (const char* field : {"\"size_bytes\": 1000000",
                            "\"count\": 250000",
                            "\"type\": \"float\"",
                            "\"redop\": \"sum\"",
                            "\"encoding\": \"none\"",
                            "\"ranks\": 4",
                            "\"density\": 0.1",
                            "\"union_density\": 0.34",
                            "\"overlap\": \"random\"",
                            "\"time_us_median\": 500.0",
                            "\"time_us_min\": 400.0",
                            "\"algbw_gbps\": 2.0",
                            "\"busbw_gbps\": 3.0",
                            "\"wrong\": 0",
                            "\"wrong\": null",
                            "\"wire_bytes\": 123456",
                            "\"retransmits\": 7",
                            "\"in_place\": false",
                            "\"memory\": \"ordinary\"",
                            "\"version\": \"",
                            "\"build\": \""})
    CHECK_THAT(text, Contains(field));
}

TEST_CASE("a JSON path that cannot be written is refused by name") {
  const Scratch scratch;
  const std::string missing = scratch / "missing/rows.json";
  CHECK_THROWS_WITH(bench::check_writable(missing),
                    Contains("--json '" + missing + "': No such file"));
  CHECK_THROWS_WITH(bench::check_writable(scratch / "."), Contains("is a directory"));
  CHECK_THROWS_AS(write_json(missing, {}), Error);
  CHECK_THROWS_AS(write_json(scratch / ".", {}), Error);
  CHECK(scratch.files() == 0);
}

}  // namespace
}  // namespace sluice::perf::perf_tests
