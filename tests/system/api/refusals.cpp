// Invalid calls: ranks that disagree, arguments out of range.
#include <functional>
#include <span>

#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

constexpr std::uint64_t kCount = 5000;

/// One op that rank 0 and the others call differently.
struct Disagreement {
  std::string field;
  std::string value_of_first;
  std::string value_of_others;
  std::function<Work(Communicator&, bool first, std::span<std::byte>)> start;
};

Work start(Communicator& job, std::span<std::byte> memory, ElementType type,
           const ReduceOptions& options = {}, std::uint64_t count = kCount) {
  return job.all_reduce(memory.data(), memory.data(), count, type, options);
}

const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all = {
      {"element type", "int32", "float",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         return start(job, memory, first ? ElementType::kInt32 : ElementType::kFloat32);
       }},
      {"reduction", "max", "sum",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         ReduceOptions options;
         options.reduction = first ? Reduction::kMax : Reduction::kSum;
         return start(job, memory, ElementType::kFloat32, options);
       }},
      {"wire type", "scaled int4", "float",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         ReduceOptions options;
         if (first) options.encoding = Encoding::kInt4;
         return start(job, memory, ElementType::kFloat32, options);
       }},
      {"rounding seed", "3", "0",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         ReduceOptions options;
         options.encoding = Encoding::kInt8;
         options.rounding_seed = first ? 3 : 0;
         return start(job, memory, ElementType::kFloat32, options);
       }},
      {"key bound", "11", "12",
       [](Communicator& job, bool first, std::span<std::byte>) -> Work {
         return job.all_reduce(SparseTensor{}, first ? 11 : 12);
       }},
      {"elements of a row", "2", "3",
       [](Communicator& job, bool first, std::span<std::byte>) -> Work {
         SparseTensor tensor;
         tensor.row_elements = first ? 2 : 3;
         return job.all_reduce(tensor, 12);
       }},
      {"element type", "int32", "float",
       [](Communicator& job, bool first, std::span<std::byte>) -> Work {
         SparseTensor tensor;
         if (first) tensor.type = ElementType::kInt32;
         return job.all_reduce(tensor, 12);
       }},
      {"reduction", "avg", "sum",  // one is not summed by hosts, the other is
       [](Communicator& job, bool first, std::span<std::byte>) -> Work {
         SparseTensor tensor;
         tensor.type = ElementType::kInt32;
         SparseOptions options;
         if (first) options.reduction = Reduction::kAverage;
         return job.all_reduce(tensor, 12, options);
       }},
      {"threshold", "0.5", "0",
       [](Communicator& job, bool first, std::span<std::byte>) -> Work {
         SparseOptions options;
         options.threshold = first ? 0.5 : 0;
         return job.all_reduce(SparseTensor{}, 12, options);
       }},
      {"collective", "sparse_all_reduce", "all_reduce",
       [](Communicator& job, bool first, std::span<std::byte> memory) -> Work {
         if (first) return job.all_reduce(SparseTensor{}, 12);
         return start(job, memory, ElementType::kFloat32);
       }},
      {"element count", "4999", "5000",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         return start(job, memory, ElementType::kFloat32, {}, first ? kCount - 1 : kCount);
       }},
      {"tag", "17", "18",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         ReduceOptions options;
         options.tag = first ? 17 : 18;
         return start(job, memory, ElementType::kFloat32, options);
       }},
      {"collective", "barrier", "all_reduce",
       [](Communicator& job, bool first, std::span<std::byte> memory) {
         return first ? job.barrier() : start(job, memory, ElementType::kFloat32);
       }},
  };
  return all;
}

void check_disagreement(const Setting& setting, const Disagreement& d) {
  Communicator signal = setting.join(2);
  Communicator job = setting.join(1);
  std::vector<std::byte> memory(kCount * 8);
  start(job, memory, ElementType::kFloat32).wait();
  signal.barrier().wait();  // otherwise the end of the job may meet a rank without that op's result
  const bool first = job.rank() == 0;
  const Work work = d.start(job, first, memory);
  const Error error =
      error_of(ErrorCode::kOpMismatch, "ranks differ in " + d.field, [&] { work.wait(); });
  check(error.op() == 1, "the op is named");
  check(error.rank().has_value(), "a rank is named");
  check_says_both(error, d.field, d.value_of_first, d.value_of_others);
  check_says(error, "(op 1)");
}

}  // namespace

void mismatches_name_ranks_and_values(const Setting& setting) {
  for (const Disagreement& d : disagreements()) check_disagreement(setting, d);
}

void invalid_arguments(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<float> tensor(1000, 1.0F);
  std::vector<float> other(999);
  const auto refused = [](const std::string& says, const std::function<void()>& call) {
    check_says(error_of(ErrorCode::kInvalidArgument, says, call), says);
  };
  const auto reduce = [&](const void* input, void* output, std::uint64_t count, int type) {
    job.all_reduce(input, output, count, static_cast<ElementType>(type));
  };
  refused("a tensor is null", [&] { reduce(nullptr, tensor.data(), 10, 1); });
  refused("a tensor is null", [&] { reduce(tensor.data(), nullptr, 10, 1); });
  refused("overlap", [&] { reduce(tensor.data(), tensor.data() + 1, 10, 1); });
  refused("none of ElementType", [&] { reduce(tensor.data(), tensor.data(), 10, 0); });
  refused("none of ElementType", [&] { reduce(tensor.data(), tensor.data(), 10, 10); });
  refused("are more than", [&] { reduce(tensor.data(), tensor.data(), ~std::uint64_t{0}, 1); });
  refused("none of ElementType", [&] { job.block_elements(static_cast<ElementType>(10)); });
  refused("they must be equal",
          [&] { job.all_reduce(std::span<const float>(tensor), std::span<float>(other)); });
  refused("none of Reduction", [&] {
    ReduceOptions options;
    options.reduction = static_cast<Reduction>(9);
    job.all_reduce(std::span(tensor), options);
  });
  refused("block_elements is 16385; 1..16384 expected", [&] {
    ReduceOptions options;
    options.block_elements = 16'385;
    job.all_reduce(std::span(tensor), options);
  });
  refused("none of Encoding", [&] {
    ReduceOptions options;
    options.encoding = static_cast<Encoding>(9);
    job.all_reduce(std::span(tensor), options);
  });
  refused("the encoding int8 is one of float, not of double", [&] {
    ReduceOptions options;
    options.encoding = Encoding::kInt8;
    std::vector<double> doubles(10);
    job.all_reduce(std::span(doubles), options);
  });
  refused("rounding_seed is 7, and the encoding bfloat16 rounds to nearest; 0 expected", [&] {
    ReduceOptions options;
    options.encoding = Encoding::kBFloat16;
    options.rounding_seed = 7;
    job.all_reduce(std::span(tensor), options);
  });
  refused("nonzero_blocks has 1 words", [&] {
    const std::uint64_t bitmap[1] = {1};
    ReduceOptions options;
    options.nonzero_blocks = bitmap;
    std::vector<float> large(65 * job.block_elements(ElementType::kFloat32));
    job.all_reduce(std::span(large), options);
  });
  const auto wrong_job = [&](const std::string& says,
                             const std::function<void(JobOptions&)>& edit) {
    refused(says, [&] {
      JobOptions options = setting.job;
      edit(options);
      const Communicator never(setting.context, options);
    });
  };
  wrong_job("rank must be below world_size", [](JobOptions& o) { o.rank = o.world_size; });
  wrong_job("world_size must be 1..256", [](JobOptions& o) { o.world_size = 0; });
  wrong_job("block_elements must be 1..16384", [](JobOptions& o) { o.block_elements = 0; });
  wrong_job("streams must be 0..1024", [](JobOptions& o) { o.streams = 1025; });
  wrong_job("history must be 0 or a power of two", [](JobOptions& o) { o.history = 3; });
  refused("exists already", [] { const Context second(ContextOptions::from_environment()); });

  job.all_reduce(std::span(tensor)).wait();  // refused calls have not harmed the job
  check(tensor[999] == static_cast<float>(job.world_size()), "the sum after the refusals");
}

}  // namespace sluice::api_test
