// One job's membership behind the public Communicator.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/memory/region.hpp"
#include "common/protocol/secret.hpp"
#include "worker/channel.hpp"
#include "worker/progress.hpp"
#include "worker/work.hpp"

namespace sluice {

struct Communicator::Impl final : private Member {
  Impl(std::shared_ptr<Progress> progress, const JobOptions& options);
  ~Impl() override;

  /// `counts` as worker::lay_out takes them; `root` is 0 where there is none.
  Work start(worker::OpRequest request, std::span<const std::uint64_t> counts,
             std::int32_t root = 0);
  SparseWork start(const SparseTensor& tensor, std::uint64_t key_bound,
                   const SparseOptions& options);
  /// A message to or from another rank. `request` is a broadcast's.
  Work post(bool sends, std::int32_t peer, worker::OpRequest request, std::uint64_t count);
  /// Leaves, or aborts with ops pending, and waits for the end. An error: how that went wrong.
  std::optional<Error> leave();
  std::uint32_t block_elements(ElementType type, std::uint16_t wanted);
  const JobOptions options;  ///< without the secret

 private:
  WorkerEngine& engine() override { return *engine_; }
  bool after_turn(Attachment& attachment, Time now) override;
  std::vector<std::uint16_t> stragglers(OpNumber op) const override;

  void find_aggregators();
  void share_memory(worker::EngineConfig& config, Attachment& attachment);
  void share_no_more(Attachment& attachment);
  void await_shared_memory(const worker::EngineConfig& config);
  void join();
  std::shared_ptr<Work::State> new_work() const;
  void submit(const worker::OpRequest& request, const std::shared_ptr<Work::State>& state,
              Attachment& attachment, Time now);
  Channel& channel_of(Route route, Attachment& attachment, Time now);
  Channel::Parent as_parent(Attachment& attachment) const;
  bool is_over() const;

  const std::shared_ptr<Progress> progress_;
  std::shared_ptr<const Secret> secret_;
  std::vector<Endpoint> aggregators_;
  std::optional<memory::OwnRegion> slots_;              // with the turn held
  SharedMemory::OfJob offered_;                         // with them
  std::unique_ptr<WorkerEngine> engine_;                // with the turn held
  OpenWorks works_;                                     // likewise
  std::map<Route, std::unique_ptr<Channel>> channels_;  // likewise
  std::size_t reserved_ = 0;                            // likewise
  Session session_;                                     // const once joined
};

}  // namespace sluice
