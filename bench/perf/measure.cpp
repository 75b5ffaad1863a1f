#include "bench/perf/measure.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "bench/perf/reference_block.hpp"
#include "bench/perf/tensors.hpp"

namespace sluice::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLatestWakeUp{200};

/// What is added up over the ranks, in the order in which it travels.
struct Counters {
  enum : std::size_t { kWrong, kBlocks, kUnionBlocks, kWireBytes, kRetransmits, kCount };
  std::array<std::int64_t, kCount> values{};

  std::int64_t& operator[](std::size_t i) { return values[i]; }

  void add(const OpStatistics& op) {
    values[kBlocks] += static_cast<std::int64_t>(op.blocks);
    values[kUnionBlocks] += static_cast<std::int64_t>(op.blocks_received);
    values[kWireBytes] += static_cast<std::int64_t>(op.bytes_sent + op.bytes_received);
    values[kRetransmits] += static_cast<std::int64_t>(op.retransmissions);
  }
};

/// The runs of one case on this rank.
class Runner {
 public:
  Runner(Communicator& job, const Options& options, const Case& the_case, const TensorSet& tensors,
         Buffers& buffers)
      : job_(job),
        options_(options),
        case_(the_case),
        tensors_(tensors),
        input_(buffers.input(tensors.bytes())),
        output_(buffers.output(tensors.bytes(), the_case.in_place)) {
    op_.reduction = the_case.reduction;
    op_.encoding = options.encoding;
    op_.rounding_seed = options.rounding_seed;
    if (options.bitmap) bitmap_ = tensors.bitmap(job.rank());
    op_.nonzero_blocks = bitmap_;
  }

  void run_all() {
    const std::uint64_t runs = std::uint64_t{options_.warmup_iterations} + options_.iterations;
    for (std::uint64_t run = 0; run < runs; ++run) {
      prepare(run);
      const bool timed = run >= options_.warmup_iterations;
      execute(timed);
      const bool checked = options_.check && (run == 0 || run + 1 == runs);
      if (checked)
        counters_[Counters::kWrong] += static_cast<std::int64_t>(
            options_.encoding == Encoding::kNone
                ? count_wrong(tensors_, run, case_.reduction, output_)
                : count_beyond_bound(
                      tensors_, run,
                      {case_.reduction, options_.encoding, options_.rounding_seed != 0}, output_));
    }
  }

  std::vector<std::int64_t>& times() { return times_; }
  Counters& counters() { return counters_; }

 private:
  /// Fills the input. If the op is out of place, it fills the output with values that no result
  /// has, so that an element that is never written is found.
  void prepare(std::uint64_t run) {
    if (run > 0 && !options_.refill) return;
    if (!case_.in_place) std::memset(output_.data(), 0xA5, output_.size());
    tensors_.fill(job_.rank(), run, input_);
  }

  void execute(bool timed) {
    job_.barrier().wait();
    pause();
    const auto start = Clock::now();
    const Work work =
        job_.all_reduce(input_.data(), output_.data(), tensors_.spec().elements, case_.type, op_);
    work.wait();
    const std::chrono::nanoseconds time = Clock::now() - start;
    job_.barrier().wait();  // no rank prepares its next run while others are still at this one
    if (!timed) return;
    times_.push_back(time.count());
    counters_.add(work.statistics());
  }

  /// Ends on all ranks at nearly the same time, whenever the kernel wakes them.
  void pause() const {
    if (options_.pause.count() == 0) return;
    const auto end = Clock::now() + options_.pause;
    std::this_thread::sleep_until(end - kLatestWakeUp);
    while (Clock::now() < end) continue;
  }

  Communicator& job_;
  const Options& options_;
  const Case& case_;
  const TensorSet& tensors_;
  std::span<std::byte> input_;
  std::span<std::byte> output_;
  std::vector<std::uint64_t> bitmap_;
  ReduceOptions op_;
  std::vector<std::int64_t> times_;
  Counters counters_;
};

/// Each iteration takes as long as its slowest rank; counters are added up.
void gather(Communicator& job, std::span<std::int64_t> times, std::span<std::int64_t> counters) {
  ReduceOptions slowest;
  slowest.reduction = Reduction::kMax;
  job.all_reduce(times, slowest).wait();
  job.all_reduce(counters).wait();
}

TensorSpec spec_of(const Communicator& job, const Options& options, const Case& the_case) {
  return {.type = the_case.type,
          .elements = the_case.bytes / element_bytes(the_case.type),
          .block_elements = job.block_elements(the_case.type),
          .ranks = job.world_size(),
          .density = the_case.density,
          .overlap = options.overlap,
          .seed = the_case.seed,
          .hosts = job.hosts(),
          .negative_zeros = !options.bitmap};
}

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Row measure(Communicator& job, const Options& options, const Case& the_case, Buffers& buffers) {
  const TensorSet tensors(spec_of(job, options, the_case));
  Runner runner(job, options, the_case, tensors, buffers);
  runner.run_all();
  Counters& totals = runner.counters();
  gather(job, runner.times(), totals.values);

  Row row;
  row.size_bytes = tensors.bytes();
  row.count = tensors.spec().elements;
  row.type = the_case.type;
  row.redop = the_case.reduction;
  row.encoding = options.encoding;
  row.ranks = job.world_size();
  row.block_elements = tensors.spec().block_elements;
  row.density = the_case.density;
  row.union_density = ratio(totals[Counters::kUnionBlocks], totals[Counters::kBlocks]);
  row.overlap = options.overlap;
  row.in_place = the_case.in_place;
  row.memory = options.memory;
  row.iterations = options.iterations;
  row.time_us = summarise(runner.times());
  if (options.check) row.wrong = static_cast<std::uint64_t>(totals[Counters::kWrong]);
  row.wire_bytes = static_cast<std::uint64_t>(totals[Counters::kWireBytes]) / options.iterations;
  row.retransmits = static_cast<std::uint64_t>(totals[Counters::kRetransmits]);
  return row;
}

}  // namespace sluice::perf
