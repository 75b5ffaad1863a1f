// One job's membership behind the public Communicator.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/protocol/secret.hpp"
#include "worker/progress.hpp"
#include "worker/work.hpp"

namespace sluice {

struct Context::Impl {
  explicit Impl(const ContextOptions& options) : progress(std::make_shared<Progress>(options)) {}

  /// Of the one Context that a process may have at a time.
  struct Place {
    Place();
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
  };

  const Place place;
  const std::shared_ptr<Progress> progress;
};

struct Communicator::Impl final : private Member {
  Impl(std::shared_ptr<Progress> progress, const JobOptions& options);
  ~Impl() override;

  /// `counts` as worker::lay_out takes them.
  Work start(worker::OpRequest request, std::span<const std::uint64_t> counts);
  /// Leaves, or aborts with ops pending, and waits for the end. An error: how that went wrong.
  std::optional<Error> leave();
  std::uint32_t block_elements(ElementType type);
  /// With the turn held. Of an op that is under way.
  std::vector<std::uint16_t> stragglers(OpNumber op) const;

  const JobOptions options;  ///< without the secret

 private:
  WorkerEngine& engine() override { return *engine_; }
  void on_completions() override;

  void find_aggregators();
  void join(std::shared_ptr<const Secret> secret);
  void reserve_buffers(Attachment& attachment);
  void check(const worker::OpRequest& request) const;

  const std::shared_ptr<Progress> progress_;
  std::vector<Endpoint> aggregators_;
  std::unique_ptr<WorkerEngine> engine_;                             // with the turn held
  std::unordered_map<OpNumber, std::shared_ptr<Work::State>> open_;  // likewise
  std::size_t reserved_ = 0;                                         // likewise
  Session session_;                                                  // const once joined
};

}  // namespace sluice
