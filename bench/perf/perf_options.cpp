#include "bench/perf/perf_options.hpp"

#include <limits>
#include <sstream>

#include "bench/flags.hpp"

namespace sluice::perf {
namespace {

using bench::FlagGroup;
using bench::Values;

std::vector<FlagGroup> flags() {
  const auto sizes =
      FlagGroup("Sizes (bytes; suffixes K M G stand for 2^10 2^20 2^30)")
          .value("minbytes,b", "32M", "first size, 0..1024G")
          .value("maxbytes,e", "32M", "last size, minbytes..1024G")
          .value("stepfactor,f", "1", "factor between sizes, 2..1024; 1 adds stepbytes")
          .value("stepbytes,i", "1M", "bytes between sizes, 1..1024G, where the factor is 1");
  const auto ops =
      FlagGroup("Operations")
          .value("datatype,d", "float",
                 "float, double, half, bfloat16, int8, "
                 "uint8, int16, int32, int64 or all")
          .value("op,o", "sum",
                 "sum, min, max, avg, prod, band, bor, "
                 "bxor or all (bitwise ones of integers)")
          .value(
              "encoding", "none",
              "of float on the wire: none, half, bfloat16, int8 or int4; --check then wants each "
              "element within the bound that sluice.hpp promises (--op sum or avg)")
          .value("rounding-seed", "0",
                 "of int8 and int4, 0..2^64-1: 0 rounds to nearest, else stochastically")
          .value("density", "1", "shares of each rank's blocks that are not zero: list of 0..1")
          .value("overlap", "random", kOverlapHelp)
          .value("memory", "shared",
                 "of tensors: shared (sluice::allocate, where daemons may read them) or ordinary")
          .value("in-place", "both", "0 (out of place), 1 (in place) or both")
          .on("bitmap", "pass the bitmap of non-zero blocks, which spares the search")
          .optional_value("block-elements",
                          "elements per block, 1..16384 "
                          "(default: SLUICE_BLOCK_ELEMENTS, else 256)")
          .optional_value("streams",
                          "streams of the job, 1..1024; 0 takes the aggregator's "
                          "(default: SLUICE_STREAMS, else 0)");
  const auto runs =
      FlagGroup("Measuring")
          .value("iters,n", "20", "timed iterations of each row, 1..1000000")
          .value("warmup_iters,w", "5", "iterations before, not timed, 0..1000000")
          .value("check,c", "1",
                 "1 compares every bit of a row's first (warm-up) and last run "
                 "with a reference, 0 does not")
          .value("refill", "1",
                 "1 fills tensors before every run, 0 before a row's first (with --check 0 and "
                 "--in-place 0 only)")
          .value("pause-us", "0",
                 "microseconds, 0..1000000, in which all ranks sleep before each iteration, as "
                 "between two steps of training: what is timed begins with idle cores")
          .value("seed", "1", "of values and block positions, 0..2^64-1, equal on all ranks")
          .file("json", "also write the rows to this file (rank 0)")
          .on("help,h", "print this and exit")
          .on("version", "print version and build, and exit");
  return {sizes, ops, runs};
}

std::vector<double> densities(const Values& values) {
  std::vector<double> list;
  std::istringstream text(values.text("density") + ",");
  for (std::string item; std::getline(text, item, ',');) {
    const auto density = bench::parse_number(item);
    if (!density || !(*density >= 0 && *density <= 1))
      values.refuse("density", "numbers 0..1, separated by commas");
    list.push_back(*density);
  }
  return list;
}

std::vector<ElementType> types(const Values& values) {
  if (values.text("datatype") == "all")
    return {ElementType::kFloat32,  ElementType::kFloat64, ElementType::kFloat16,
            ElementType::kBFloat16, ElementType::kInt32,   ElementType::kInt64,
            ElementType::kInt8,     ElementType::kUInt8,   ElementType::kInt16};
  const auto type = parse_element_type(values.text("datatype"));
  if (!type)
    values.refuse("datatype",
                  "float, double, half, bfloat16, int8, uint8, int16, int32, int64, all");
  return {*type};
}

std::vector<Reduction> reductions(const Values& values) {
  if (values.text("op") == "all")
    return {Reduction::kSum,     Reduction::kMin,    Reduction::kMax,   Reduction::kAverage,
            Reduction::kProduct, Reduction::kBitAnd, Reduction::kBitOr, Reduction::kBitXor};
  const auto reduction = parse_reduction(values.text("op"));
  if (!reduction) values.refuse("op", "sum, min, max, avg, prod, band, bor, bxor, all");
  return {*reduction};
}

Encoding encoding(const Values& values) {
  const auto encoding = parse_encoding(values.text("encoding"));
  if (!encoding) values.refuse("encoding", "none, half, bfloat16, int8, int4");
  return *encoding;
}

void check_encoding(const Values& values, const Options& options) {
  const auto is_sum = [](Reduction r) { return r == Reduction::kSum || r == Reduction::kAverage; };
  if (options.rounding_seed != 0 && !is_scaled(options.encoding))
    values.refuse("rounding-seed", "0, unless --encoding is int8 or int4");
  if (options.encoding == Encoding::kNone) return;
  if (options.types != std::vector{ElementType::kFloat32})
    values.refuse("encoding", "none, unless --datatype is float");
  if (options.reductions.size() != 1 || !is_sum(options.reductions[0]))
    values.refuse("encoding", "none, unless --op is sum or avg");
}

Overlap overlap(const Values& values) {
  const auto overlap = parse_overlap(values.text("overlap"));
  if (!overlap) values.refuse("overlap", kOverlapNames);
  return *overlap;
}

std::vector<bool> in_place(const Values& values) {
  const std::string text = values.text("in-place");
  if (text == "both") return {false, true};
  if (text != "0" && text != "1") values.refuse("in-place", "0, 1, both");
  return {text == "1"};
}

MemoryKind memory(const Values& values) {
  for (const MemoryKind kind : {MemoryKind::kShared, MemoryKind::kOrdinary})
    if (values.text("memory") == name(kind)) return kind;
  values.refuse("memory", "shared, ordinary");
}

Options interpret(const Values& values) {
  constexpr std::uint64_t kMaxIterations = 1'000'000;
  Options options;
  options.min_bytes = values.bytes("minbytes", 0);
  options.max_bytes = values.bytes("maxbytes", options.min_bytes);
  options.step_factor = values.integer("stepfactor", 1, 1024);
  options.step_bytes = values.bytes("stepbytes", 1);
  if (options.min_bytes == 0 && options.max_bytes != 0 && options.step_factor > 1)
    values.refuse("minbytes", "1..1024G with --stepfactor, as 0 does not grow");
  options.iterations = static_cast<std::uint32_t>(values.integer("iters", 1, kMaxIterations));
  options.warmup_iterations =
      static_cast<std::uint32_t>(values.integer("warmup_iters", 0, kMaxIterations));
  options.check = values.integer("check", 0, 1) == 1;
  options.types = types(values);
  options.reductions = reductions(values);
  if (options.types.size() == 1 && options.reductions.size() == 1 &&
      !is_valid(options.types[0], options.reductions[0]))
    values.refuse("op", "sum, min, max, avg or prod for floats");
  options.encoding = encoding(values);
  options.rounding_seed =
      values.integer("rounding-seed", 0, std::numeric_limits<std::uint64_t>::max());
  check_encoding(values, options);
  options.densities = densities(values);
  options.overlap = overlap(values);
  options.memory = memory(values);
  options.in_place = in_place(values);
  options.refill = values.integer("refill", 0, 1) == 1;
  if (!options.refill && (options.check || options.in_place != std::vector<bool>{false}))
    values.refuse("refill", "1, as --check 1 and results in place need it");
  options.pause = std::chrono::microseconds(values.integer("pause-us", 0, 1'000'000));
  if (values.given("block-elements"))
    options.block_elements = static_cast<std::uint16_t>(values.integer("block-elements", 1, 16384));
  if (values.given("streams"))
    options.streams = static_cast<std::uint16_t>(values.integer("streams", 0, 1024));
  options.bitmap = values.is_set("bitmap");
  options.seed = values.integer("seed", 0, std::numeric_limits<std::uint64_t>::max());
  options.json_path = values.text("json");
  return options;
}

}  // namespace

std::string_view name(MemoryKind kind) {
  return kind == MemoryKind::kShared ? "shared" : "ordinary";
}

std::vector<std::uint64_t> Options::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = min_bytes; size <= max_bytes;
       size = step_factor > 1 && size > 0 ? size * step_factor : size + step_bytes)
    sizes.push_back(size);
  return sizes;
}

Options parse_options(const std::vector<std::string>& arguments) {
  const Values values(flags(), arguments);
  Options options;
  options.help = values.is_set("help");
  options.version = values.is_set("version");
  return options.help || options.version ? options : interpret(values);
}

bench::Help help() {
  return {
      .usage = "sluice-perf [flags], started once per rank",
      .about =
          "Times AllReduce over Sluice and checks its results. Ranks, world size and aggregators\n"
          "come from the environment (SLUICE_RANK, SLUICE_WORLD_SIZE, SLUICE_AGGREGATORS, ...) or\n"
          "the launcher; without aggregators all ranks are on this host. Rank 0 prints. Flags and\n"
          "columns follow nccl-tests. Exit status: 0 all right, 1 a wrong result or an error, 2 a\n"
          "wrong flag.\n",
      .flags = flags(),
      .notes =
          "Columns: time is the median over the timed iterations, each the longest of all ranks\n"
          "from after a barrier to completion; algbw is size / time and busbw is\n"
          "algbw * 2(ranks-1)/ranks; wire is the UDP payload sent and received by all ranks, the\n"
          "mean of an iteration; retrans is what all ranks sent again in all timed iterations.\n"};
}

}  // namespace sluice::perf
