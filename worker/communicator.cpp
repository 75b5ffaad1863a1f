#include "worker/communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdlib>

#include "common/base/random_id.hpp"
#include "worker/environment.hpp"
#include "worker/layout.hpp"

namespace sluice {
namespace {

using wire::Collective;
using worker::ElementRange;

worker::EngineConfig engine_config(const JobOptions& options, Attachment& attachment) {
  worker::EngineConfig config;
  config.job = options.job;
  config.rank = Rank{options.rank};
  config.ranks = options.world_size;
  config.block_elements = options.block_elements;
  config.streams = options.streams;
  config.history = options.history;
  config.payload_bytes = attachment.payload_bytes();
  config.join_timeout = options.join_timeout;
  config.aggregator_timeout = options.aggregator_timeout;
  config.rto.min = options.retransmit_timeout_min;
  config.integrity = attachment.computes_integrity();
  config.authenticate_packets = options.authenticate_packets;
  config.unique = random_id;
  config.locate = [&attachment](std::uint16_t shard, unsigned attempt) {
    return attachment.locate(shard, attempt, Progress::now());
  };
  for (std::size_t shard = 0; shard < attachment.aggregators(); ++shard) {
    config.aggregator_names.push_back(attachment.name_of(shard));
    config.addresses.push_back(attachment.addresses_of(shard));
  }
  return config;
}

JobOptions without_secret(JobOptions options) {
  options.secret.clear();
  return options;
}

struct Tensors {
  const void* input = nullptr;
  void* output = nullptr;
  ElementType type = ElementType::kFloat32;
};

worker::OpRequest request(Collective collective, const Tensors& tensors, const MoveOptions& options,
                          std::uint16_t root = 0) {
  worker::OpRequest request;
  request.collective = collective;
  request.type = tensors.type;
  request.input = static_cast<const std::byte*>(tensors.input);
  request.output = static_cast<std::byte*>(tensors.output);
  request.root = root;
  request.tag = options.tag;
  return request;
}

worker::OpRequest request(Collective collective, const Tensors& tensors,
                          const ReduceOptions& options, std::uint16_t root = 0) {
  worker::OpRequest result = request(collective, tensors, MoveOptions{options.tag}, root);
  result.reduction = options.reduction;
  result.nonzero_blocks = options.nonzero_blocks;
  return result;
}

std::atomic<bool> context_exists{false};

}  // namespace

// --------------------------------------------------------------------------------------- joining
Communicator::Impl::Impl(std::shared_ptr<Progress> progress, const JobOptions& job)
    : options((validate(job), without_secret(job))), progress_(std::move(progress)) {
  auto secret = secret_of(job);
  find_aggregators();
  join(std::move(secret));
}

/// Waits until every aggregator's link is up and its address known.
void Communicator::Impl::find_aggregators() {
  const Time deadline = after(Progress::now(), options.join_timeout);
  std::size_t found = 0;
  std::string missing;
  Time next_look{};
  const auto look = [&] {
    if (Progress::now() < next_look) return false;
    next_look = after(Progress::now(), std::chrono::milliseconds(1));
    progress_->with_turn([&](Attachment& attachment, Time now) {
      while (found < attachment.aggregators()) {
        const auto endpoint = attachment.find(found, now);
        if (!endpoint) {
          missing = std::to_string(found) + " at " + attachment.name_of(found);
          return;
        }
        aggregators_.push_back(*endpoint);
        ++found;
      }
    });
    return found == progress_->aggregators();
  };
  if (progress_->drive(look, deadline)) return;
  throw Error(ErrorCode::kAggregatorLost, "job " + std::to_string(options.job) + ": aggregator " +
                                              missing + " is unreachable within " +
                                              std::to_string(options.join_timeout.count()) + " ms");
}

void Communicator::Impl::join(std::shared_ptr<const Secret> secret) {
  progress_->with_turn([&](Attachment& attachment, Time now) {
    worker::EngineConfig config = engine_config(options, attachment);
    config.secret = std::move(secret);
    engine_ = std::make_unique<WorkerEngine>(std::move(config), aggregators_);
    progress_->add(*this);
    engine_->start(now, attachment.io());
  });
  bool joining = true;
  const auto joined = [&] {
    progress_->with_turn(
        [&](Attachment&, Time) { joining = engine_->state() == WorkerEngine::State::kJoining; });
    return !joining;
  };
  progress_->drive(joined, kNever);  // the engine has bounds of its own
  std::optional<Error> failure;
  progress_->with_turn([&](Attachment& attachment, Time) {
    failure = engine_->failure();
    try {
      if (!failure) reserve_buffers(attachment);
    } catch (const Error& error) {
      failure = error;
      engine_->abort(error, attachment.io());
    }
    if (failure) {
      progress_->remove(*this);
      engine_.reset();
    } else {
      session_ = engine_->session();
    }
  });
  if (failure) throw Error(*failure);
}

/// The results that the job keeps and the packets under way must fit the context's memory.
void Communicator::Impl::reserve_buffers(Attachment& attachment) {
  const Session& session = engine_->session();
  const std::size_t needed = std::size_t{session.streams} * (session.history + 2u);
  const std::size_t reserved = progress_->reserved_buffers();
  if (reserved + needed > attachment.buffers())
    throw Error(
        ErrorCode::kUnavailable,
        "job " + std::to_string(options.job) + " needs " + std::to_string(needed) +
            " packet buffers (" + std::to_string(session.streams) + " streams, history " +
            std::to_string(session.history) + "), but " +
            std::to_string(attachment.buffers() - std::min(reserved, attachment.buffers())) +
            " of " + std::to_string(attachment.buffers()) +
            " are free: set memory_mib (SLUICE_MEMORY_MIB) to at least " +
            std::to_string(attachment.memory_mib_for(reserved + needed)));
  progress_->reserve_buffers(needed);
  reserved_ = needed;
}

// ------------------------------------------------------------------------------------------- ops
Work Communicator::Impl::start(worker::OpRequest request, std::span<const std::uint64_t> counts) {
  worker::lay_out(request, {options.rank, options.world_size}, counts);
  check(request);
  auto state = std::make_shared<Work::State>();
  state->progress = progress_;
  state->job = this;
  state->started = Progress::now();
  progress_->with_turn([&](Attachment& attachment, Time now) {
    state->op = engine_->submit(request, now, attachment.io());
    open_.emplace(state->op, state);
    if (engine_->has_completions()) on_completions();
  });
  return Work(std::move(state));
}

void Communicator::Impl::check(const worker::OpRequest& request) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name(request.collective)) + ": " + why);
  };
  if (!is_valid(request.type)) refuse("the element type is none of ElementType");
  if (!is_valid(request.reduction)) refuse("the reduction is none of Reduction");
  if (!is_valid(request.type, request.reduction))
    refuse("the reduction " + std::string(name(request.reduction)) +
           " is one of integers, not of " + std::string(name(request.type)));
  if (request.root >= options.world_size)
    refuse("root " + std::to_string(request.root) +
           ", below world_size = " + std::to_string(options.world_size) + " expected");
  const std::uint32_t block =
      fitting_block_elements(session_.block_elements, request.type, session_.payload_bytes);
  if (request.element_count > max_element_count(block))
    refuse(std::to_string(request.element_count) + " elements in blocks of " +
           std::to_string(block) + " are more than " + std::to_string(max_element_count(block)));
  if (request.element_count == 0) return;
  const ElementRange whole{0, request.element_count};
  const ElementRange held = request.held.value_or(whole);
  const std::span<const ElementRange> wanted =
      request.wanted ? std::span<const ElementRange>(*request.wanted) : std::span(&whole, 1);
  std::uint64_t wanted_count = 0;
  for (const ElementRange& range : wanted) wanted_count += range.end - range.begin;
  const std::uint64_t held_count = held.end - held.begin;
  if ((request.input == nullptr && held_count != 0) ||
      (request.output == nullptr && wanted_count != 0))
    refuse("a tensor is null");
  const std::size_t size = element_bytes(request.type);
  const std::byte* const input_end = request.input + held_count * size;
  const std::byte* const output_end = request.output + wanted_count * size;
  if (request.input < output_end && request.output < input_end) {
    // Then each element must have one place. Reckoned as numbers: what is not held has no address.
    const auto first = [&](const std::byte* tensor, std::uint64_t begin) {
      return reinterpret_cast<std::uintptr_t>(tensor) - begin * size;
    };
    if (wanted.size() != 1 ||
        first(request.input, held.begin) != first(request.output, wanted[0].begin))
      refuse("input and output overlap; they must be the same or apart");
  }
  const std::uint64_t blocks = (request.element_count + block - 1) / block;
  const std::uint64_t words = (blocks + 63) / 64;
  if (!request.nonzero_blocks.empty() && request.nonzero_blocks.size() < words)
    refuse("nonzero_blocks has " + std::to_string(request.nonzero_blocks.size()) +
           " words; the tensor's " + std::to_string(blocks) + " blocks need " +
           std::to_string(words));
}

void Communicator::Impl::on_completions() {
  const Time now = Progress::now();
  for (worker::Completion& completion : engine_->take_completions()) {
    const auto found = open_.find(completion.op);
    assert(found != open_.end());  // start() enters an op in the turn in which it submits it
    Work::State& state = *found->second;
    state.error = std::move(completion.error);
    state.statistics = completion.statistics;
    state.statistics.duration = now - state.started;
    state.done.store(true, std::memory_order_release);
    open_.erase(found);
  }
}

std::vector<std::uint16_t> Communicator::Impl::stragglers(OpNumber op) const {
  std::vector<std::uint16_t> ranks;
  engine_->awaited(op).for_each([&](Rank rank) { ranks.push_back(rank.value); });
  return ranks;
}

std::uint32_t Communicator::Impl::block_elements(ElementType type) {
  if (!is_valid(type))
    throw Error(ErrorCode::kInvalidArgument, "block_elements: none of ElementType");
  return fitting_block_elements(session_.block_elements, type, session_.payload_bytes);
}

// --------------------------------------------------------------------------------------- leaving
std::optional<Error> Communicator::Impl::leave() {
  bool over = false;
  progress_->with_turn([&](Attachment& attachment, Time now) {
    engine_->leave(now, attachment.io());
    if (engine_->has_completions()) on_completions();
    over = engine_->over();
  });
  progress_->drive(
      [&] {
        if (!over) progress_->with_turn([&](Attachment&, Time) { over = engine_->over(); });
        return over;
      },
      kNever);
  return engine_->failure();
}

Communicator::Impl::~Impl() {
  if (progress_->inherited()) {  // the membership is the parent's, and so are the buffers
    static_cast<void>(engine_.release());
    return;
  }
  leave();
  progress_->with_turn([&](Attachment&, Time) {
    progress_->remove(*this);
    progress_->release_buffers(reserved_);
    engine_.reset();  // gives its buffers back
  });
}

// -------------------------------------------------------------------------------- the public API
Context::Impl::Place::Place() {
  if (context_exists.exchange(true))
    throw Error(ErrorCode::kInvalidArgument,
                "a Context exists already in this process: share it between communicators");
}
Context::Impl::Place::~Place() {
  context_exists = false;
}

Context::Context(ContextOptions options) : impl_(std::make_unique<Impl>(options)) {}
Context::~Context() = default;

Communicator::Communicator(Context& context, JobOptions options)
    : impl_(std::make_unique<Impl>(context.impl().progress, options)) {}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

std::uint16_t Communicator::rank() const {
  return impl_->options.rank;
}
std::uint16_t Communicator::world_size() const {
  return impl_->options.world_size;
}
std::uint32_t Communicator::block_elements(ElementType type) const {
  return impl_->block_elements(type);
}

Work Communicator::all_reduce(const void* input, void* output, std::uint64_t element_count,
                              ElementType type, const ReduceOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kAllReduce, tensors, options), {&element_count, 1});
}

Work Communicator::reduce(const void* input, void* output, std::uint64_t element_count,
                          ElementType type, std::uint16_t root, const ReduceOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kReduce, tensors, options, root), {&element_count, 1});
}

Work Communicator::reduce_scatter(const void* input, void* output,
                                  std::span<const std::uint64_t> counts, ElementType type,
                                  const ReduceOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kReduceScatter, tensors, options), counts);
}

Work Communicator::broadcast(void* tensor, std::uint64_t element_count, ElementType type,
                             std::uint16_t root, const MoveOptions& options) {
  const Tensors tensors{tensor, tensor, type};
  return impl_->start(request(Collective::kBroadcast, tensors, options, root), {&element_count, 1});
}

Work Communicator::all_gather(const void* input, void* output,
                              std::span<const std::uint64_t> counts, ElementType type,
                              const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kAllGather, tensors, options), counts);
}

Work Communicator::gather(const void* input, void* output, std::span<const std::uint64_t> counts,
                          ElementType type, std::uint16_t root, const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kGather, tensors, options, root), counts);
}

Work Communicator::scatter(const void* input, void* output, std::span<const std::uint64_t> counts,
                           ElementType type, std::uint16_t root, const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kScatter, tensors, options, root), counts);
}

Work Communicator::all_to_all(const void* input, void* output,
                              std::span<const std::uint64_t> counts, ElementType type,
                              const MoveOptions& options) {
  const Tensors tensors{input, output, type};
  return impl_->start(request(Collective::kAllToAll, tensors, options), counts);
}

Work Communicator::barrier() {
  const std::uint64_t nothing = 0;
  return impl_->start(request(Collective::kBarrier, Tensors{}, MoveOptions{}), {&nothing, 1});
}

void Communicator::leave() {
  if (const auto error = impl_->leave()) throw Error(*error);
}

}  // namespace sluice
