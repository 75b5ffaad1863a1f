// sluice.h by means of sluice.hpp: handles own the C++ objects, and no exception gets out.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>

#include <sluice/global_top_k.hpp>
#include <sluice/sluice.h>
#include <sluice/sluice.hpp>

#include "bindings/c/guarded.hpp"
#include "bindings/c/to_c.hpp"
#include "common/base/version.hpp"
#include "worker/config/worker_settings.hpp"

struct sluice_options {
  sluice::Options values;
};

struct sluice_context {
  std::shared_ptr<sluice::Context> context;
  std::atomic<unsigned> communicators{0};
};

namespace {

/// One communicator of a context: from before it joins until it has left.
class Counted {
 public:
  explicit Counted(sluice_context& context) : context_(context) { ++context_.communicators; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --context_.communicators; }

 private:
  sluice_context& context_;
};

}  // namespace

struct sluice_communicator {
  sluice_communicator(sluice_context& owner, const sluice::JobOptions& job)
      : counted(owner), communicator(*owner.context, job) {}
  sluice_communicator(sluice_context& owner, const sluice::SplitWork& split)
      : counted(owner), communicator(split.join()) {}

  Counted counted;
  sluice::Communicator communicator;
};

struct sluice_work {
  sluice::Work work;
  sluice::SparseWork sparse;  ///< the same, if it is a sparse sum; else not valid()
  sluice::SplitWork split;    ///< the same, if it is a split; else not valid()
};

struct sluice_global_top_k {
  explicit sluice_global_top_k(const sluice::GlobalTopK::Options& options) : top_k(options) {}

  sluice::GlobalTopK top_k;
};

struct sluice_completion_queue {
  sluice::CompletionQueue queue;
};

namespace {

using sluice::Error;
using sluice::ErrorCode;
using sluice::c::check_size;
using sluice::c::given;
using sluice::c::guarded;
using sluice::c::refuse;
using sluice::c::tell;
using sluice::c::to_c;

std::span<const std::uint64_t> span_of(const std::uint64_t* counts, std::size_t size,
                                       const char* call) {
  return {&given(counts, call, "counts"), size};
}

sluice_work handle_of(sluice::Work work) {
  return {.work = std::move(work), .sparse = {}, .split = {}};
}

sluice_work handle_of(sluice::SparseWork work) {
  return {.work = work, .sparse = work, .split = {}};
}

sluice_work handle_of(sluice::SplitWork work) {
  return {.work = work, .sparse = {}, .split = work};
}

/// Starts an op and hands out its handle.
template <class Start>
sluice_status started(const char* call, sluice_communicator* communicator, sluice_work** work,
                      sluice_error* error, Start&& start) {
  return guarded(error, [&] {
    auto& job = given(communicator, call, "communicator").communicator;
    auto& out = given(work, call, "work");
    auto handle = std::make_unique<sluice_work>();  // before the op: nothing may fail after it
    *handle = handle_of(start(job));
    out = handle.release();
  });
}

/// The C++ enumerator of a value of C; of one that does not fit, 0, which stands for none.
template <class Enum>
Enum narrowed(int value) {
  const auto number = static_cast<std::underlying_type_t<Enum>>(value);
  return static_cast<Enum>(number == value ? number : 0);
}

sluice::ElementType from_c(sluice_element_type type) {
  return narrowed<sluice::ElementType>(type);
}

sluice::Reduction from_c(sluice_reduction reduction, const char* call) {
  const auto result = narrowed<sluice::Reduction>(reduction);
  if (!sluice::is_valid(result))
    refuse(std::string(call) + ": the reduction " + std::to_string(int{reduction}) +
           " is none of sluice_reduction");
  return result;
}

sluice::Encoding encoding_from_c(std::uint16_t number, const char* call) {
  const auto encoding = narrowed<sluice::Encoding>(number);
  if (!sluice::is_valid(encoding) ||
      (encoding == sluice::Encoding::kNone) != (number == SLUICE_ENCODING_NONE))
    refuse(std::string(call) + ": the encoding " + std::to_string(number) +
           " is none of sluice_encoding");
  return encoding;
}

sluice::ReduceOptions from_c(const sluice_reduce_options* options, const char* call) {
  sluice::ReduceOptions result;
  if (options == nullptr) return result;
  // Of headers before those members came.
  const bool has_no_blocks = options->size == offsetof(sluice_reduce_options, block_elements);
  const bool has_no_seed = options->size == offsetof(sluice_reduce_options, rounding_seed);
  if (!has_no_blocks && !has_no_seed) check_size(options->size, sizeof *options, call, "options");
  result.reduction = from_c(options->reduction, call);
  if (options->nonzero_blocks != nullptr)
    result.nonzero_blocks = {options->nonzero_blocks, options->nonzero_words};
  result.tag = options->tag;
  if (has_no_blocks) return result;
  if (options->reserved_0 != 0 || options->reserved_1 != 0)
    refuse(std::string(call) + ": the options' reserved members must be 0");
  result.block_elements = options->block_elements;
  result.encoding = encoding_from_c(options->encoding, call);
  if (!has_no_seed) result.rounding_seed = options->rounding_seed;
  return result;
}

sluice::SparseTensor from_c(const sluice_sparse_tensor* pointer, const char* call) {
  const sluice_sparse_tensor& tensor = given(pointer, call, "tensor");
  check_size(tensor.size, sizeof tensor, call, "tensor");
  if (tensor.reserved_0 != 0)
    refuse(std::string(call) + ": the tensor's reserved member must be 0");
  if (tensor.count != 0) given(tensor.keys, call, "keys");
  return {.keys = {tensor.keys, tensor.count},
          .values = tensor.values,
          .type = from_c(tensor.type),
          .row_elements = tensor.row_elements};
}

sluice::SparseOptions from_c(const sluice_sparse_options* options, const char* call) {
  if (options == nullptr) return {};
  // Of headers before that member came.
  const bool has_no_encoding = options->size == offsetof(sluice_sparse_options, encoding);
  if (!has_no_encoding) check_size(options->size, sizeof *options, call, "options");
  if (options->combine != 0 && options->combine != 1)
    refuse(std::string(call) + ": combine is " + std::to_string(options->combine) +
           "; 0 or 1 expected");
  sluice::SparseOptions result{.reduction = from_c(options->reduction, call),
                               .threshold = options->threshold,
                               .result_bytes = options->result_bytes,
                               .combine = options->combine == 1,
                               .tag = options->tag};
  if (has_no_encoding) return result;
  if (options->reserved_0 != 0 || options->reserved_1 != 0)
    refuse(std::string(call) + ": the options' reserved members must be 0");
  result.encoding = encoding_from_c(options->encoding, call);
  result.rounding_seed = options->rounding_seed;
  return result;
}

/// As many as there is room for, and how many there are.
void tell_ranks(const std::vector<std::uint16_t>& all, std::uint16_t* ranks, std::size_t capacity,
                std::size_t* count, const char* call) {
  std::size_t& out = given(count, call, "count");
  if (capacity != 0) given(ranks, call, "ranks");
  std::copy_n(all.begin(), std::min(capacity, all.size()), ranks);
  out = all.size();
}

const sluice::SparseWork& sparse_of(const sluice_work* work, const char* call) {
  const sluice::SparseWork& sparse = given(work, call, "work").sparse;
  if (!sparse.valid()) refuse(std::string(call) + ": the op is no sparse sum");
  return sparse;
}

}  // namespace

// ---------------------------------------------------------------------------------------- names
const char* sluice_version(void) {
  return sluice::version();
}

const char* sluice_build(void) {
  return sluice::build_id();
}

// The C++ names are literals, so they end with NUL.
const char* sluice_status_name(sluice_status status) {
  if (status == SLUICE_OK) return "ok";
  const char* const name = sluice::name(narrowed<ErrorCode>(status)).data();
  return *name == '?' ? "unknown" : name;
}

size_t sluice_element_bytes(sluice_element_type type) {
  return sluice::element_bytes(from_c(type));
}

const char* sluice_element_type_name(sluice_element_type type) {
  return sluice::name(from_c(type)).data();
}

const char* sluice_reduction_name(sluice_reduction reduction) {
  return sluice::name(narrowed<sluice::Reduction>(reduction)).data();
}

sluice_element_type sluice_parse_element_type(const char* name) {
  const auto type = sluice::parse_element_type(name == nullptr ? "" : name);
  return type ? to_c(*type) : sluice_element_type{};
}

sluice_reduction sluice_parse_reduction(const char* name) {
  const auto reduction = sluice::parse_reduction(name == nullptr ? "" : name);
  return reduction ? to_c(*reduction) : sluice_reduction{};
}

// -------------------------------------------------------------------------------------- settings
sluice_options* sluice_options_create(void) {
  return new (std::nothrow) sluice_options;
}

sluice_status sluice_options_from_environment(sluice_options* options, sluice_error* error) {
  return guarded(error, [&] {
    auto& all = given(options, "sluice_options_from_environment", "options").values;
    all = {sluice::ContextOptions::from_environment(), sluice::JobOptions::from_environment()};
  });
}

sluice_status sluice_options_set(sluice_options* options, const char* name, const char* value,
                                 sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_options_set";
    sluice::assign(given(options, kCall, "options").values, &given(name, kCall, "name"),
                   &given(value, kCall, "value"));
  });
}

sluice_status sluice_options_set_interrupt(sluice_options* options, const int* interrupt,
                                           sluice_error* error) {
  return guarded(error, [&] {
    given(options, "sluice_options_set_interrupt", "options").values.job.interrupt = interrupt;
  });
}

void sluice_options_destroy(sluice_options* options) {
  delete options;
}

sluice_status sluice_job_id(const char* name, uint32_t* id, sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_job_id";
    auto& out = given(id, kCall, "id");
    out = sluice::JobId(&given(name, kCall, "name"));
  });
}

// ------------------------------------------------------------------------ context, communicator
sluice_status sluice_context_open(const sluice_options* options, sluice_context** context,
                                  sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_context_open";
    const auto& settings = given(options, kCall, "options").values.context;
    auto& out = given(context, kCall, "context");
    out = new sluice_context{std::make_shared<sluice::Context>(settings)};
  });
}

sluice_status sluice_context_share(const sluice_options* options, sluice_context** context,
                                   sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_context_share";
    const auto& settings = given(options, kCall, "options").values.context;
    auto& out = given(context, kCall, "context");
    out = new sluice_context{sluice::Context::shared(settings)};
  });
}

sluice_status sluice_context_start_timeline(sluice_context* context, const char* file,
                                            sluice_error* error) {
  constexpr const char* kCall = "sluice_context_start_timeline";
  return guarded(error, [&] {
    given(context, kCall, "context").context->start_timeline(&given(file, kCall, "file"));
  });
}

sluice_status sluice_context_stop_timeline(sluice_context* context, sluice_error* error) {
  return guarded(error, [&] {
    given(context, "sluice_context_stop_timeline", "context").context->stop_timeline();
  });
}

sluice_status sluice_context_close(sluice_context* context, sluice_error* error) {
  return guarded(error, [&] {
    if (context == nullptr) return;
    if (const unsigned open = context->communicators; open != 0)
      refuse("sluice_context_close: " + std::to_string(open) +
             " of its communicators must be destroyed first");
    delete context;
  });
}

sluice_status sluice_communicator_join(sluice_context* context, const sluice_options* options,
                                       sluice_communicator** communicator, sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_communicator_join";
    auto& owner = given(context, kCall, "context");
    const auto& job = given(options, kCall, "options").values.job;
    auto& out = given(communicator, kCall, "communicator");
    out = new sluice_communicator(owner, job);
  });
}

sluice_status sluice_communicator_leave(sluice_communicator* communicator, sluice_error* error) {
  return guarded(error, [&] {
    given(communicator, "sluice_communicator_leave", "communicator").communicator.leave();
  });
}

sluice_status sluice_communicator_abort(sluice_communicator* communicator, const char* why,
                                        sluice_error* error) {
  return guarded(error, [&] {
    auto& job = given(communicator, "sluice_communicator_abort", "communicator").communicator;
    job.abort(why == nullptr ? "" : why);
  });
}

void sluice_communicator_note_exception(sluice_communicator* communicator) {
  if (communicator != nullptr) communicator->communicator.note_exception();
}

sluice_status sluice_communicator_failure(const sluice_communicator* communicator,
                                          sluice_error* failure) {
  return guarded(failure, [&] {
    const auto& job = given(communicator, "sluice_communicator_failure", "communicator");
    if (const auto error = job.communicator.failure()) throw Error(*error);
  });
}

sluice_status sluice_communicator_stragglers(const sluice_communicator* communicator,
                                             uint16_t* ranks, size_t capacity, size_t* count,
                                             sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_communicator_stragglers";
    const auto& job = given(communicator, kCall, "communicator").communicator;
    tell_ranks(job.stragglers(), ranks, capacity, count, kCall);
  });
}

sluice_status sluice_communicator_statistics(const sluice_communicator* communicator,
                                             sluice_job_statistics* statistics, size_t size,
                                             sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_communicator_statistics";
    const auto& job = given(communicator, kCall, "communicator").communicator;
    auto& out = given(statistics, kCall, "statistics");
    check_size(size, sizeof out, kCall, "statistics");
    out = to_c(job.statistics());
  });
}

void sluice_communicator_destroy(sluice_communicator* communicator) {
  guarded(nullptr, [&] { delete communicator; });
}

int32_t sluice_communicator_rank(const sluice_communicator* communicator) {
  return communicator == nullptr ? -1 : std::int32_t{communicator->communicator.rank()};
}

int32_t sluice_communicator_world_size(const sluice_communicator* communicator) {
  return communicator == nullptr ? -1 : std::int32_t{communicator->communicator.world_size()};
}

uint32_t sluice_communicator_job_id(const sluice_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->communicator.job_id();
}

// --------------------------------------------------------------------------------------- tensors
uint32_t sluice_block_elements(const sluice_communicator* communicator, sluice_element_type type) {
  return sluice_op_block_elements(communicator, type, 0);
}

uint32_t sluice_op_block_elements(const sluice_communicator* communicator, sluice_element_type type,
                                  uint16_t wanted) {
  const sluice::ElementType element = from_c(type);
  if (communicator == nullptr || !sluice::is_valid(element)) return 0;
  return communicator->communicator.block_elements(element, wanted);
}

void* sluice_allocate(size_t bytes) {
  void* memory = nullptr;
  guarded(nullptr, [&] { memory = sluice::allocate(bytes); });
  return memory;
}

void sluice_free(void* memory) {
  sluice::deallocate(memory);
}

// ----------------------------------------------------------------------------------- collectives
sluice_status sluice_all_reduce(sluice_communicator* communicator, const void* input, void* output,
                                uint64_t count, sluice_element_type type,
                                const sluice_reduce_options* options, sluice_work** work,
                                sluice_error* error) {
  constexpr const char* kCall = "sluice_all_reduce";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.all_reduce(input, output, count, from_c(type), from_c(options, kCall));
  });
}

sluice_status sluice_broadcast(sluice_communicator* communicator, void* tensor, uint64_t count,
                               sluice_element_type type, int32_t root, uint64_t tag,
                               sluice_work** work, sluice_error* error) {
  return started("sluice_broadcast", communicator, work, error, [&](sluice::Communicator& job) {
    return job.broadcast(tensor, count, from_c(type), root, {.tag = tag});
  });
}

sluice_status sluice_all_gather(sluice_communicator* communicator, const void* input, void* output,
                                const uint64_t* counts, size_t ranks, sluice_element_type type,
                                uint64_t tag, sluice_work** work, sluice_error* error) {
  constexpr const char* kCall = "sluice_all_gather";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.all_gather(input, output, span_of(counts, ranks, kCall), from_c(type), {.tag = tag});
  });
}

sluice_status sluice_reduce(sluice_communicator* communicator, const void* input, void* output,
                            uint64_t count, sluice_element_type type, int32_t root,
                            const sluice_reduce_options* options, sluice_work** work,
                            sluice_error* error) {
  constexpr const char* kCall = "sluice_reduce";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.reduce(input, output, count, from_c(type), root, from_c(options, kCall));
  });
}

sluice_status sluice_reduce_scatter(sluice_communicator* communicator, const void* input,
                                    void* output, const uint64_t* counts, size_t ranks,
                                    sluice_element_type type, const sluice_reduce_options* options,
                                    sluice_work** work, sluice_error* error) {
  constexpr const char* kCall = "sluice_reduce_scatter";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.reduce_scatter(input, output, span_of(counts, ranks, kCall), from_c(type),
                              from_c(options, kCall));
  });
}

sluice_status sluice_gather(sluice_communicator* communicator, const void* input, void* output,
                            const uint64_t* counts, size_t ranks, sluice_element_type type,
                            int32_t root, uint64_t tag, sluice_work** work, sluice_error* error) {
  constexpr const char* kCall = "sluice_gather";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.gather(input, output, span_of(counts, ranks, kCall), from_c(type), root,
                      {.tag = tag});
  });
}

sluice_status sluice_scatter(sluice_communicator* communicator, const void* input, void* output,
                             const uint64_t* counts, size_t ranks, sluice_element_type type,
                             int32_t root, uint64_t tag, sluice_work** work, sluice_error* error) {
  constexpr const char* kCall = "sluice_scatter";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.scatter(input, output, span_of(counts, ranks, kCall), from_c(type), root,
                       {.tag = tag});
  });
}

sluice_status sluice_all_to_all(sluice_communicator* communicator, const void* input, void* output,
                                const uint64_t* counts, size_t pairs, sluice_element_type type,
                                uint64_t tag, sluice_work** work, sluice_error* error) {
  constexpr const char* kCall = "sluice_all_to_all";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.all_to_all(input, output, span_of(counts, pairs, kCall), from_c(type), {.tag = tag});
  });
}

sluice_status sluice_send(sluice_communicator* communicator, const void* tensor, uint64_t count,
                          sluice_element_type type, int32_t to, uint64_t tag, sluice_work** work,
                          sluice_error* error) {
  return started("sluice_send", communicator, work, error, [&](sluice::Communicator& job) {
    return job.send(tensor, count, from_c(type), to, {.tag = tag});
  });
}

sluice_status sluice_recv(sluice_communicator* communicator, void* tensor, uint64_t count,
                          sluice_element_type type, int32_t from, uint64_t tag, sluice_work** work,
                          sluice_error* error) {
  return started("sluice_recv", communicator, work, error, [&](sluice::Communicator& job) {
    return job.recv(tensor, count, from_c(type), from, {.tag = tag});
  });
}

sluice_status sluice_sparse_all_reduce(sluice_communicator* communicator,
                                       const sluice_sparse_tensor* tensor, uint64_t key_bound,
                                       const sluice_sparse_options* options, sluice_work** work,
                                       sluice_error* error) {
  constexpr const char* kCall = "sluice_sparse_all_reduce";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return job.all_reduce(from_c(tensor, kCall), key_bound, from_c(options, kCall));
  });
}

sluice_status sluice_barrier(sluice_communicator* communicator, sluice_work** work,
                             sluice_error* error) {
  return started("sluice_barrier", communicator, work, error,
                 [](sluice::Communicator& job) { return job.barrier(); });
}

sluice_status sluice_split(sluice_communicator* communicator, int32_t color, int32_t key,
                           sluice_work** work, sluice_error* error) {
  return started("sluice_split", communicator, work, error,
                 [&](sluice::Communicator& job) { return job.split(color, key); });
}

sluice_status sluice_duplicate(sluice_communicator* communicator, sluice_work** work,
                               sluice_error* error) {
  return started("sluice_duplicate", communicator, work, error,
                 [](sluice::Communicator& job) { return job.duplicate(); });
}

sluice_status sluice_communicator_join_split(sluice_context* context, const sluice_work* split,
                                             sluice_communicator** communicator,
                                             sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_communicator_join_split";
    auto& owner = given(context, kCall, "context");
    const sluice::SplitWork& work = given(split, kCall, "split").split;
    if (!work.valid()) refuse(std::string(kCall) + ": the op is no split");
    auto& out = given(communicator, kCall, "communicator");
    out = new sluice_communicator(owner, work);
  });
}

sluice_status sluice_work_wait(const sluice_work* work, int64_t bound_ns, sluice_error* error) {
  return guarded(error, [&] {
    const sluice::Work& op = given(work, "sluice_work_wait", "work").work;
    if (bound_ns == SLUICE_FOREVER) return op.wait();
    const std::chrono::nanoseconds bound(std::max<std::int64_t>(bound_ns, 0));
    if (!op.wait_for(bound))
      throw Error(ErrorCode::kTimeout,
                  "the op is not done after " + std::to_string(bound.count()) + " ns; it goes on");
  });
}

int32_t sluice_work_done(const sluice_work* work) {
  return work == nullptr ? -1 : work->work.done() ? 1 : 0;
}

double sluice_work_progress(const sluice_work* work) {
  double progress = work == nullptr ? -1 : 1;
  if (work != nullptr) guarded(nullptr, [&] { progress = work->work.progress(); });
  return progress;
}

sluice_status sluice_work_set_timeout(const sluice_work* work, uint64_t timeout_ms,
                                      sluice_error* error) {
  return guarded(error, [&] {
    const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    given(work, "sluice_work_set_timeout", "work")
        .work.set_timeout(
            std::chrono::milliseconds(static_cast<std::int64_t>(std::min(timeout_ms, most))));
  });
}

sluice_status sluice_work_stragglers(const sluice_work* work, uint16_t* ranks, size_t capacity,
                                     size_t* count, sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_work_stragglers";
    tell_ranks(given(work, kCall, "work").work.stragglers(), ranks, capacity, count, kCall);
  });
}

sluice_status sluice_work_statistics(const sluice_work* work, sluice_op_statistics* statistics,
                                     size_t size, sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_work_statistics";
    const sluice::OpStatistics op = given(work, kCall, "work").work.statistics();
    auto& out = given(statistics, kCall, "statistics");
    check_size(size, sizeof out, kCall, "statistics");
    out = to_c(op);
  });
}

sluice_status sluice_work_sparse_sums(const sluice_work* work, sluice_element_type type,
                                      const uint64_t** keys, const void** values, uint64_t* count,
                                      sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_work_sparse_sums";
    const sluice::SparseWork& sums = sparse_of(work, kCall);
    auto& out = given(count, kCall, "count");
    const auto found = sums.value_bytes(from_c(type));
    out = sums.size();
    if (keys != nullptr) *keys = sums.keys().data();
    if (values != nullptr) *values = found.data();
  });
}

sluice_status sluice_work_sparse_dense(const sluice_work* work, void* tensor, uint64_t count,
                                       sluice_element_type type, sluice_error* error) {
  return guarded(error, [&] {
    sparse_of(work, "sluice_work_sparse_dense").copy_to_dense(tensor, count, from_c(type));
  });
}

sluice_status sluice_work_sparse_rejected(const sluice_work* work, uint64_t rejected[4],
                                          sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_work_sparse_rejected";
    const auto counts = sparse_of(work, kCall).rejected();
    std::ranges::copy(counts, &given(rejected, kCall, "rejected"));
  });
}

void sluice_work_destroy(sluice_work* work) {
  delete work;
}

sluice_completion_queue* sluice_completion_queue_create(void) {
  try {
    return new sluice_completion_queue;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void sluice_completion_queue_destroy(sluice_completion_queue* queue) {
  delete queue;
}

sluice_status sluice_completion_queue_add(sluice_completion_queue* queue, const sluice_work* work,
                                          uint64_t tag, sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_completion_queue_add";
    given(queue, kCall, "queue").queue.add(given(work, kCall, "work").work, tag);
  });
}

sluice_status sluice_completion_queue_next(sluice_completion_queue* queue, int64_t bound_ns,
                                           uint64_t* tag, sluice_error* error) {
  bool has_ended = false;
  const sluice_status status = guarded(error, [&] {
    constexpr const char* kCall = "sluice_completion_queue_next";
    auto& out = given(tag, kCall, "tag");
    const auto next = given(queue, kCall, "queue").queue.next(std::chrono::nanoseconds(bound_ns));
    has_ended = next.has_value();
    out = next.value_or(out);
  });
  if (status != SLUICE_OK || has_ended) return status;
  return tell(error, Error(ErrorCode::kTimeout, "no op of the queue has ended"));
}

void sluice_completion_queue_interrupt(sluice_completion_queue* queue) {
  if (queue != nullptr) queue->queue.interrupt();
}

sluice_status sluice_completion_queue_descriptor(sluice_completion_queue* queue, int* descriptor,
                                                 sluice_error* error) {
  return guarded(error, [&] {
    constexpr const char* kCall = "sluice_completion_queue_descriptor";
    auto& out = given(descriptor, kCall, "descriptor");
    out = given(queue, kCall, "queue").queue.descriptor();
  });
}

// ------------------------------------------------------------- the k largest elements of the sum
sluice_status sluice_global_top_k_create(uint64_t k, uint32_t exact_every,
                                         sluice_reduction reduction, uint64_t result_bytes,
                                         uint64_t tag, sluice_global_top_k** top_k,
                                         sluice_error* error) {
  return guarded(error, [&] {
    auto& out = given(top_k, "sluice_global_top_k_create", "top_k");
    out = new sluice_global_top_k({.k = k,
                                   .exact_every = exact_every,
                                   .reduction = narrowed<sluice::Reduction>(reduction),
                                   .result_bytes = result_bytes,
                                   .tag = tag});
  });
}

sluice_status sluice_global_top_k_start(sluice_communicator* communicator,
                                        sluice_global_top_k* top_k, const float* gradients,
                                        float* residual, uint64_t count, sluice_work** work,
                                        sluice_error* error) {
  constexpr const char* kCall = "sluice_global_top_k_start";
  return started(kCall, communicator, work, error, [&](sluice::Communicator& job) {
    return given(top_k, kCall, "top_k")
        .top_k.start(job, sluice::c::elements_of(gradients, count, kCall, "gradients"),
                     sluice::c::residual_of(residual, count));
  });
}

sluice_status sluice_global_top_k_finish(sluice_global_top_k* top_k, float* out, uint64_t count,
                                         uint64_t* delivered, sluice_error* error) {
  constexpr const char* kCall = "sluice_global_top_k_finish";
  return guarded(error, [&] {
    auto& step = given(top_k, kCall, "top_k").top_k;
    const auto work = step.finish(sluice::c::elements_of(out, count, kCall, "out"));
    if (delivered != nullptr) *delivered = work.size();
  });
}

sluice_status sluice_global_top_k_set_k(sluice_global_top_k* top_k, uint64_t k,
                                        sluice_error* error) {
  return guarded(error, [&] { given(top_k, "sluice_global_top_k_set_k", "top_k").top_k.set_k(k); });
}

sluice_status sluice_global_top_k_forget(sluice_global_top_k* top_k, sluice_error* error) {
  return guarded(error,
                 [&] { given(top_k, "sluice_global_top_k_forget", "top_k").top_k.forget(); });
}

float sluice_global_top_k_threshold(const sluice_global_top_k* top_k) {
  return top_k == nullptr ? 0 : top_k->top_k.threshold();
}

void sluice_global_top_k_destroy(sluice_global_top_k* top_k) {
  guarded(nullptr, [&] { delete top_k; });
}
