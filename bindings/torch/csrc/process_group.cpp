#include "bindings/torch/csrc/process_group.hpp"

#include <algorithm>
#include <utility>

#include "bindings/torch/csrc/checks.hpp"
#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/layout_tag.hpp"
#include "bindings/torch/csrc/operation_steps.hpp"
#include "bindings/torch/csrc/sparse.hpp"
#include "bindings/torch/csrc/torch_work.hpp"
#include "bindings/torch/csrc/without_gil.hpp"

namespace sluice_torch {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

/// Callers mean for ever by more than the longest, and clocks cannot count it.
milliseconds in_milliseconds(std::chrono::duration<float> seconds) {
  return std::min(std::chrono::duration_cast<milliseconds>(seconds), kLongestTimeout);
}

/// The exception that this thread's Python code handles, if any. The lock must be held.
pybind11::object handled_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_GetExcInfo(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return pybind11::reinterpret_steal<pybind11::object>(value);
}

const void* exception_that_makes_it() {
  const pybind11::gil_scoped_acquire acquired;
  return handled_exception().ptr();
}

/// Whether Python code handles one, in a `finally` mostly, that came later than `before`. Where the
/// lock is not held there is no such code. (What is raised to end in good order counts as none.)
bool handles_exception(const void* before) {
  if (!Py_IsInitialized() || !PyGILState_Check()) return false;
  const pybind11::object handled = handled_exception();
  return handled && !handled.is_none() && handled.ptr() != before &&
         PyErr_GivenExceptionMatches(handled.ptr(), PyExc_SystemExit) == 0 &&
         PyErr_GivenExceptionMatches(handled.ptr(), PyExc_GeneratorExit) == 0;
}

#if TORCH_VERSION_MAJOR >= 2
/// Each rank's part of all tensors, rank by rank.
Tensors parts_by_rank(const std::string& call, const Tensors& tensors, std::int64_t ranks) {
  Tensors parts;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_contiguous())
        refuse(call, described(tensor) + " is not contiguous, so that ranks have no parts of it");
      parts.push_back(tensor.view({ranks, -1}).select(0, rank));
    }
  return parts;
}
#endif

}  // namespace

// ------------------------------------------------------------------------------------- the group

ProcessGroupSluice::ProcessGroupSluice(const c10d::DistributedBackendOptions& options,
                                       const Settings& settings)
    : Base(options.group_rank, options.group_size),
      timeout_(in_milliseconds(options.timeout)),
      handled_(exception_that_makes_it()),
      group_(JoinedGroup::open(join(*options.store, options.group_rank, options.group_size,
                                    options.global_ranks_in_group, timeout_, settings),
                               options.global_ranks_in_group)) {
  init();
}

ProcessGroupSluice::~ProcessGroupSluice() {
  const bool by_exception = handles_exception(handled_);
  close(by_exception);
}

void ProcessGroupSluice::close(bool by_exception) {
  const WithoutGil waiting;
  group_->close(by_exception);
}

void ProcessGroupSluice::set_timeout(milliseconds timeout) {
  if (timeout <= milliseconds::zero())
    refuse("_set_default_timeout",
           "timeout " + std::to_string(timeout.count()) + " ms; more than 0 expected");
  timeout_ = std::min(timeout, kLongestTimeout);
}

c10::intrusive_ptr<Base::Options> ProcessGroupSluice::options() const {
  return c10::make_intrusive<Base::Options>(getBackendName(), timeout_.load());
}

WorkPtr ProcessGroupSluice::start(OpType type, milliseconds timeout, Operation::Request request) {
  request.timeout =
      timeout == c10d::kUnsetTimeout ? timeout_.load() : std::min(timeout, kLongestTimeout);
  const WorkPtr work = c10::make_intrusive<Work>(group_, group_->start(std::move(request)), type);
  const std::lock_guard lock(coalescing_);
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

#if TORCH_VERSION_MAJOR >= 2
void ProcessGroupSluice::startCoalescing() {
  const std::lock_guard lock(coalescing_);
  coalesced_.emplace();  // what a block that failed has left is not waited for
}

WorkPtr ProcessGroupSluice::endCoalescing() {
  const std::lock_guard lock(coalescing_);
  if (!coalesced_) refuse("end_coalescing", "no start_coalescing came before");
  return c10::make_intrusive<Works>(*std::exchange(coalesced_, std::nullopt));
}
#endif

std::uint16_t ProcessGroupSluice::checked_root(const std::string& call, std::int64_t root) const {
  if (root < 0 || root >= getSize())
    refuse(call, "root " + std::to_string(root) + "; 0 to " + std::to_string(getSize() - 1) +
                     " expected");
  return static_cast<std::uint16_t>(root);
}

std::uint16_t ProcessGroupSluice::checked_peer(const std::string& call, int peer) const {
  if (peer == getRank()) refuse(call, "rank " + std::to_string(peer) + " is this rank itself");
  if (peer < 0 || peer >= getSize())
    refuse(call, "rank " + std::to_string(peer) + "; 0 to " + std::to_string(getSize() - 1) +
                     " expected");
  return static_cast<std::uint16_t>(peer);
}

/// Tensors of all ranks' parts, each beside that of one rank's.
void ProcessGroupSluice::check_coalesced(const std::string& call, const Tensors& of_all,
                                         const Tensors& of_one) const {
  if (of_one.empty()) refuse(call, "no tensors; at least 1 expected");
  if (of_all.size() != of_one.size())
    refuse(call, std::to_string(of_all.size()) + " tensors of all ranks' parts and " +
                     std::to_string(of_one.size()) + " of one rank's; as many expected");
  check_same_kind(call, of_one, of_one.front());
  check_same_kind(call, of_all, of_one.front());
  for (std::size_t i = 0; i < of_all.size(); ++i)
    check_elements(call, "tensor " + std::to_string(i) + " of all ranks' parts", of_all[i],
                   of_one[i].numel() * getSize());
}

/// The list of one tensor per rank.
const Tensors& ProcessGroupSluice::per_rank(const std::string& call,
                                            const std::vector<Tensors>& lists) const {
  if (lists.size() != 1 || lists.front().size() != ranks())
    refuse(call, std::to_string(lists.empty() ? 0 : lists.front().size()) + " tensors in " +
                     std::to_string(lists.size()) + " lists; 1 list of " + std::to_string(ranks()) +
                     ", one for each rank, expected");
  return lists.front();
}

// ------------------------------------------------------------------------------------ reductions

WorkPtr ProcessGroupSluice::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const std::string call = "all_reduce";
  const at::Tensor& tensor = only(call, tensors);
  if (tensor.is_sparse())
    return start(OpType::ALLREDUCE, options.timeout, sparse_all_reduce(tensor, options.reduceOp));
  check_dense(call, tensor);
  const Reducing kind = reduced(call, tensor.scalar_type(), options.reduceOp);
  Staging staging(tensor.device(), kind);
  const at::Tensor host = staging.in_place(tensor);
  return start(OpType::ALLREDUCE, options.timeout,
               {.call = call,
                .tensor = tensor,
                .staging = std::move(staging),
                .steps = {all_reduce_step(host, kind, tag_of(call, tensor))},
                .outputs = tensors});
}

WorkPtr ProcessGroupSluice::allreduce_top_k(TopKSums& sums, const at::Tensor& gradients) {
  return start(OpType::ALLREDUCE, c10d::kUnsetTimeout, sums.step(gradients));
}

WorkPtr ProcessGroupSluice::allreduce_encoded(const at::Tensor& tensor, const std::string& encoding,
                                              std::uint16_t block_elements) {
  const std::string call = "all_reduce_encoded";
  check_dense(call, tensor);
  if (tensor.scalar_type() != at::kFloat)
    refuse(call, "the tensor is " + described(tensor) + "; float32 expected");
  sluice::ReduceOptions options{.reduction = sluice::Reduction::kAverage,
                                .block_elements = block_elements,
                                .encoding = encoding_named(call, encoding),
                                .tag = tag_of(call, tensor)};
  Staging staging(tensor.device());
  const at::Tensor host = staging.in_place(tensor);
  const auto step = [=](sluice::Communicator& job, sluice::DeviceTensors* device) mutable {
    options.device = device;
    return job.all_reduce(host.data_ptr(), host.data_ptr(),
                          static_cast<std::uint64_t>(host.numel()), sluice::ElementType::kFloat32,
                          options);
  };
  return start(OpType::ALLREDUCE, c10d::kUnsetTimeout,
               {.call = call,
                .tensor = tensor,
                .staging = std::move(staging),
                .steps = {step},
                .outputs = {tensor}});
}

WorkPtr ProcessGroupSluice::allreduce_coalesced(Tensors& tensors,
                                                const c10d::AllreduceCoalescedOptions& options) {
  const std::string call = "all_reduce_coalesced";
  if (tensors.empty()) refuse(call, "no tensors; at least 1 expected");
  const at::Tensor& first = tensors.front();
  check_same_kind(call, tensors, first);
  const Reducing kind = reduced(call, first.scalar_type(), options.reduceOp);
  Staging staging(first.device(), kind);
  const at::Tensor host = staging.in_place(tensors);
  return start(OpType::ALLREDUCE_COALESCED, options.timeout,
               {.call = call,
                .tensor = host,
                .staging = std::move(staging),
                .steps = {all_reduce_step(host, kind, tag_of(call, host))},
                .outputs = tensors});
}

WorkPtr ProcessGroupSluice::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const std::string call = "reduce";
  const at::Tensor& tensor = only_dense(call, tensors);
  const std::uint16_t root = checked_root(call, options.rootRank);
  const Reducing kind = reduced(call, tensor.scalar_type(), options.reduceOp);
  Staging staging(tensor.device(), kind);
  const at::Tensor host = root == getRank() ? staging.in_place(tensor) : staging.input(tensor);
  const auto step = [=, tag = tag_of(call, tensor)](sluice::Communicator& job,
                                                    sluice::DeviceTensors* device) {
    return job.reduce(host.data_ptr(), root == job.rank() ? host.data_ptr() : nullptr,
                      kind.elements.of(host.numel()), kind.elements.type, root,
                      reducing(kind, tag, device));
  };
  return start(OpType::REDUCE, options.timeout,
               {.call = call,
                .tensor = tensor,
                .staging = std::move(staging),
                .steps = {step},
                .outputs = tensors});
}

WorkPtr ProcessGroupSluice::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& options) {
  const std::string call = "reduce_scatter";
  const at::Tensor& output = only_dense(call, outputs);
  const Tensors& parts = per_rank(call, inputs);
  check_same_kind(call, parts, output);
  check_elements(call, "the output", output, parts[std::size_t(getRank())].numel());
  const Reducing kind = reduced(call, output.scalar_type(), options.reduceOp);
  Staging staging(output.device(), kind);
  const at::Tensor from = staging.input(parts);
  const at::Tensor to = staging.output(outputs);
  return start(OpType::REDUCE_SCATTER, options.timeout,
               {.call = call,
                .tensor = output,
                .staging = std::move(staging),
                .steps = {reduce_scatter_step(from, to, counts_of(kind.elements, parts), kind,
                                              tag_of(call, from))},
                .outputs = outputs});
}

WorkPtr ProcessGroupSluice::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) {
  const std::string call = "reduce_scatter_tensor";
  check_same_kind(call, {output, input}, output);
  check_elements(call, "the input", input, output.numel() * getSize());
  const Reducing kind = reduced(call, output.scalar_type(), options.reduceOp);
  Staging staging(output.device(), kind);
  const at::Tensor from = staging.input(Tensors{input});
  const at::Tensor to = staging.output(Tensors{output});
  const Counts counts(ranks(), kind.elements.of(output.numel()));
  return start(OpType::_REDUCE_SCATTER_BASE, options.timeout,
               {.call = call,
                .tensor = input,
                .staging = std::move(staging),
                .steps = {reduce_scatter_step(from, to, counts, kind, tag_of(call, from))},
                .outputs = {output}});
}

#if TORCH_VERSION_MAJOR >= 2
WorkPtr ProcessGroupSluice::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const std::string call = "reduce_scatter_tensor_coalesced";
  check_coalesced(call, inputs, outputs);
  const at::Tensor& first = outputs.front();
  const Reducing kind = reduced(call, first.scalar_type(), options.reduceOp);
  Staging staging(first.device(), kind);
  const at::Tensor from = staging.input(parts_by_rank(call, inputs, getSize()));
  const at::Tensor to = staging.output(outputs);
  const Counts counts(ranks(), kind.elements.of(to.numel()));
  return start(OpType::COALESCED, options.timeout,
               {.call = call,
                .tensor = from,
                .staging = std::move(staging),
                .steps = {reduce_scatter_step(from, to, counts, kind, tag_of(call, from))},
                .outputs = outputs});
}

WorkPtr ProcessGroupSluice::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const std::string call = "all_gather_into_tensor_coalesced";
  check_coalesced(call, outputs, inputs);
  const Elements elements = moved(inputs.front().scalar_type());
  Staging staging(inputs.front().device());
  const at::Tensor from = staging.input(inputs);
  const at::Tensor to = staging.output(parts_by_rank(call, outputs, getSize()));
  const Counts counts(ranks(), elements.of(from.numel()));
  return start(OpType::COALESCED, options.timeout,
               {.call = call,
                .tensor = from,
                .staging = std::move(staging),
                .steps = {all_gather_step(from, to, counts, elements, tag_of(call, from))},
                .outputs = outputs});
}
#endif

// ----------------------------------------------------------------------------------------- moves

WorkPtr ProcessGroupSluice::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const std::string call = "broadcast";
  const at::Tensor& tensor = only_dense(call, tensors);
  const std::uint16_t root = checked_root(call, options.rootRank);
  const Elements elements = moved(tensor.scalar_type());
  Staging staging(tensor.device());
  const at::Tensor host = root == getRank() ? staging.input(tensor) : staging.output(tensor);
  const auto step = [=, tag = tag_of(call, tensor)](sluice::Communicator& job,
                                                    sluice::DeviceTensors* device) {
    return job.broadcast(host.data_ptr(), elements.of(host.numel()), elements.type, root,
                         {.tag = tag, .device = device});
  };
  return start(OpType::BROADCAST, options.timeout,
               {.call = call,
                .tensor = tensor,
                .staging = std::move(staging),
                .steps = {step},
                .outputs = tensors});
}

WorkPtr ProcessGroupSluice::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  const std::string call = "all_gather";
  const at::Tensor& input = only_dense(call, inputs);
  const Tensors& parts = per_rank(call, outputs);
  check_same_kind(call, parts, input);
  check_elements(call, "the input", input, parts[std::size_t(getRank())].numel());
  const Elements elements = moved(input.scalar_type());
  Staging staging(input.device());
  const at::Tensor from = staging.input(inputs);
  const at::Tensor to = staging.output(parts);
  return start(OpType::ALLGATHER, options.timeout,
               {.call = call,
                .tensor = input,
                .staging = std::move(staging),
                .steps = {all_gather_step(from, to, counts_of(elements, parts), elements,
                                          tag_of(call, from))},
                .outputs = parts});
}

WorkPtr ProcessGroupSluice::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& options) {
  const std::string call = "all_gather_into_tensor";
  check_same_kind(call, {output, input}, input);
  check_elements(call, "the output", output, input.numel() * getSize());
  const Elements elements = moved(input.scalar_type());
  Staging staging(input.device());
  const at::Tensor from = staging.input(Tensors{input});
  const at::Tensor to = staging.output(Tensors{output});
  const Counts counts(ranks(), elements.of(input.numel()));
  return start(OpType::_ALLGATHER_BASE, options.timeout,
               {.call = call,
                .tensor = input,
                .staging = std::move(staging),
                .steps = {all_gather_step(from, to, counts, elements, tag_of(call, from))},
                .outputs = {output}});
}

WorkPtr ProcessGroupSluice::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  const std::string call = "all_gather_coalesced";
  if (inputs.empty()) refuse(call, "no tensors; at least 1 expected");
  if (outputs.size() != ranks())
    refuse(call, std::to_string(outputs.size()) + " lists of outputs; one for each of " +
                     std::to_string(ranks()) + " ranks expected");
  check_same_kind(call, inputs, inputs.front());
  Tensors all;
  for (const Tensors& list : outputs) {
    if (list.size() != inputs.size())
      refuse(call, std::to_string(list.size()) + " outputs of a rank; " +
                       std::to_string(inputs.size()) + ", as many as inputs, expected");
    for (std::size_t i = 0; i < list.size(); ++i) check_same_shape(call, {list[i]}, inputs[i]);
    all.insert(all.end(), list.begin(), list.end());
  }
  const Elements elements = moved(inputs.front().scalar_type());
  Staging staging(inputs.front().device());
  const at::Tensor from = staging.input(inputs);
  const at::Tensor to = staging.output(all);
  const Counts counts(ranks(), elements.of(from.numel()));
  return start(OpType::ALLGATHER_COALESCED, options.timeout,
               {.call = call,
                .tensor = from,
                .staging = std::move(staging),
                .steps = {all_gather_step(from, to, counts, elements, tag_of(call, from))},
                .outputs = all});
}

WorkPtr ProcessGroupSluice::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& options) {
  const std::string call = "gather";
  const at::Tensor& input = only_dense(call, inputs);
  const std::uint16_t root = checked_root(call, options.rootRank);
  Staging staging(input.device());
  const at::Tensor from = staging.input(inputs);
  at::Tensor to;
  if (root == getRank()) {
    check_same_shape(call, per_rank(call, outputs), input);
    to = staging.output(outputs.front());
  } else if (!outputs.empty()) {
    refuse(call, "a list of outputs, but rank " + std::to_string(root) + " alone gathers");
  }
  const Elements elements = moved(input.scalar_type());
  const Counts counts(ranks(), elements.of(input.numel()));
  const auto step = [=, tag = tag_of(call, from)](sluice::Communicator& job,
                                                  sluice::DeviceTensors* device) {
    return job.gather(from.data_ptr(), to.defined() ? to.data_ptr() : nullptr, counts,
                      elements.type, root, {.tag = tag, .device = device});
  };
  return start(OpType::GATHER, options.timeout,
               {.call = call,
                .tensor = input,
                .staging = std::move(staging),
                .steps = {step},
                .outputs = outputs.empty() ? Tensors{} : outputs.front()});
}

WorkPtr ProcessGroupSluice::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ScatterOptions& options) {
  const std::string call = "scatter";
  const at::Tensor& output = only_dense(call, outputs);
  const std::uint16_t root = checked_root(call, options.rootRank);
  Staging staging(output.device());
  at::Tensor from;
  if (root == getRank()) {
    check_same_shape(call, per_rank(call, inputs), output);
    from = staging.input(inputs.front());
  } else if (!inputs.empty()) {
    refuse(call, "a list of inputs, but rank " + std::to_string(root) + " alone scatters");
  }
  const at::Tensor to = staging.output(outputs);
  const Elements elements = moved(output.scalar_type());
  const Counts counts(ranks(), elements.of(output.numel()));
  const auto step = [=, tag = tag_of(call, to)](sluice::Communicator& job,
                                                sluice::DeviceTensors* device) {
    return job.scatter(from.defined() ? from.data_ptr() : nullptr, to.data_ptr(), counts,
                       elements.type, root, {.tag = tag, .device = device});
  };
  return start(OpType::SCATTER, options.timeout,
               {.call = call,
                .tensor = output,
                .staging = std::move(staging),
                .steps = {step},
                .outputs = outputs});
}

WorkPtr ProcessGroupSluice::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<std::int64_t>& received,
                                          std::vector<std::int64_t>& sent,
                                          const c10d::AllToAllOptions& options) {
  const std::string call = "all_to_all_single";
  check_same_kind(call, {output, input}, input);
  const Elements elements = moved(input.scalar_type());
  const auto to_send = checked_split(call, input, sent, getSize());
  const auto to_receive = checked_split(call, output, received, getSize());
  if (sent.empty() && received.empty()) check_elements(call, "the output", output, input.numel());
  Staging staging(input.device());
  const at::Tensor from = staging.input(Tensors{input});
  const at::Tensor to = staging.output(Tensors{output});
  // Also where the parts are equal here: on other ranks they may not be.
  return start(
      OpType::ALLTOALL_BASE, options.timeout,
      {.call = call,
       .tensor = input,
       .staging = std::move(staging),
       .steps = all_to_all_steps(from, to, to_send, to_receive, elements, tag_of(call, from)),
       .outputs = {output}});
}

WorkPtr ProcessGroupSluice::alltoall(Tensors& outputs, Tensors& inputs,
                                     const c10d::AllToAllOptions& options) {
  const std::string call = "all_to_all";
  per_rank(call, {outputs});
  per_rank(call, {inputs});
  check_same_kind(call, inputs, inputs.front());
  check_same_kind(call, outputs, inputs.front());
  const auto sizes = [](const Tensors& tensors) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
    return sizes;
  };
  Staging staging(inputs.front().device());
  const at::Tensor from = staging.input(inputs);
  const at::Tensor to = staging.output(outputs);
  const Elements elements = moved(from.scalar_type());
  return start(OpType::ALLTOALL, options.timeout,
               {.call = call,
                .tensor = from,
                .staging = std::move(staging),
                .steps = all_to_all_steps(from, to, sizes(inputs), sizes(outputs), elements,
                                          tag_of(call, from)),
                .outputs = outputs});
}

// -------------------------------------------------------------------------------------- messages

namespace {

std::uint64_t checked_tag(const std::string& call, int tag) {
  if (tag < 0) refuse(call, "tag " + std::to_string(tag) + "; 0 or more expected");
  return static_cast<std::uint64_t>(tag);
}

}  // namespace

/// Elements travel row by row, whatever the strides: the other side's may be others.
WorkPtr ProcessGroupSluice::message(OpType type, Tensors& tensors, int other, int tag) {
  const bool sends = type == OpType::SEND;
  const std::string call = sends ? "send" : "recv";
  const at::Tensor& tensor = only_dense(call, tensors);
  const std::uint16_t peer = checked_peer(call, other);
  sluice::MoveOptions options{.tag = checked_tag(call, tag)};
  const Elements elements = sent(tensor.scalar_type());
  Staging staging(tensor.device());
  const at::Tensor host = sends ? staging.input(tensors) : staging.output(tensors);
  const auto step = [=](sluice::Communicator& job, sluice::DeviceTensors* device) mutable {
    options.device = device;
    const std::uint64_t count = elements.of(host.numel());
    return sends ? job.send(host.data_ptr(), count, elements.type, peer, options)
                 : job.recv(host.data_ptr(), count, elements.type, peer, options);
  };
  return start(type, c10d::kUnsetTimeout,
               {.call = call,
                .tensor = tensor,
                .staging = std::move(staging),
                .steps = {step},
                .outputs = tensors,
                .is_collective = false});
}

WorkPtr ProcessGroupSluice::send(Tensors& tensors, int to, int tag) {
  return message(OpType::SEND, tensors, to, tag);
}

WorkPtr ProcessGroupSluice::recv(Tensors& tensors, int from, int tag) {
  return message(OpType::RECV, tensors, from, tag);
}

WorkPtr ProcessGroupSluice::recvAnysource(Tensors&, int) {
  refuse("recv", "a message of whichever rank comes first; the rank that it comes from expected");
}

// -------------------------------------------------------------------------------------- barriers

WorkPtr ProcessGroupSluice::barrier(const c10d::BarrierOptions& options) {
  return start(
      OpType::BARRIER, options.timeout,
      {.call = "barrier",
       .tensor = {},
       .staging = Staging(at::kCPU),
       .steps = {[](sluice::Communicator& job, sluice::DeviceTensors*) { return job.barrier(); }}});
}

void ProcessGroupSluice::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  barrier(options)->wait();
}

}  // namespace sluice_torch
