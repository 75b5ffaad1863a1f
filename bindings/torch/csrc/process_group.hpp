// The c10d backend "sluice": checks what a call was given and says which steps it takes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bindings/torch/csrc/checks.hpp"
#include "bindings/torch/csrc/joined_group.hpp"
#include "bindings/torch/csrc/top_k_sums.hpp"

namespace sluice_torch {

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup;
#endif

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class ProcessGroupSluice final : public Base {
 public:
  /// Joins the job: returns when all ranks have.
  ProcessGroupSluice(const c10d::DistributedBackendOptions& options, const Settings& settings);
  ~ProcessGroupSluice() override;

  const std::string getBackendName() const override { return "sluice"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// A step of Ok-Topk: see TopKSums::step().
  WorkPtr allreduce_top_k(TopKSums& sums, const at::Tensor& gradients);
  /// Their average, in place, of float32. It travels in fewer bits: see ReduceOptions::encoding, of
  /// which this is the name, as `block_elements` is another.
  WorkPtr allreduce_encoded(const at::Tensor& tensor, const std::string& encoding,
                            std::uint16_t block_elements);
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& received,
                        std::vector<std::int64_t>& sent,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  std::uint64_t bytes_sent() const { return group_->bytes_sent(); }

  /// Of the calls from now on that name none. Throws unless it is positive.
  void set_timeout(std::chrono::milliseconds timeout);
  c10::intrusive_ptr<Base::Options> options() const;
  /// Leaves the job. Ops in flight, and those of the other ranks, fail. `by_exception`: others are
  /// told that this rank failed.
  void close(bool by_exception);

  /// Every rank counts its calls from 0.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return group_->operations_started(); }

#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return allreduce(tensors, options);
  }
  /// Each output has as many elements as its input has on all ranks. One op does all.
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  /// Each input has as many elements as its output has on all ranks. One op does all.
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  /// What is called from here to endCoalescing() starts at once; the Work of that is of all.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
#endif

 private:
  WorkPtr start(c10d::OpType type, std::chrono::milliseconds timeout, Operation::Request request);
  WorkPtr message(c10d::OpType type, Tensors& tensors, int other, int tag);
  void check_coalesced(const std::string& call, const Tensors& of_all, const Tensors& of_one) const;
  std::uint16_t checked_root(const std::string& call, std::int64_t root) const;
  std::uint16_t checked_peer(const std::string& call, int peer) const;
  const Tensors& per_rank(const std::string& call, const std::vector<Tensors>& lists) const;
  std::size_t ranks() const {
    return static_cast<std::size_t>(getSize());
  }

  std::atomic<std::chrono::milliseconds> timeout_;
  std::mutex coalescing_;                          // callbacks call, too, from other threads
  std::optional<std::vector<WorkPtr>> coalesced_;  // since startCoalescing(); guarded by it
  const void* const handled_;  // by the code that made the group; only to be compared
  std::shared_ptr<JoinedGroup> group_;
};

}  // namespace sluice_torch
