// A membership among the ranks of one simulated host: the host engine and its queue over simulated
// memory, driven as the library's host::HostMembership does it. A rank's turn is not interrupted,
// unless the rank dies in the middle; host_level simulates interleaving.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/sim/host_level/shared_memory.hpp"
#include "tests/sim/random.hpp"
#include "worker/host/engine/engine.hpp"
#include "worker/host/engine/host_op_queue.hpp"
#include "worker/host/sums.hpp"

namespace sluice::sim {

/// A job of the ranks of one host.
class HostGroup final : public SharedMemory {
 public:
  HostGroup(const HostSizes& sizes, std::size_t least_piece)
      : SharedMemory(sizes), least_piece_bytes(least_piece), seats_(sizes.ranks) {}

  const std::size_t least_piece_bytes;

  /// The functions of a rank's process.
  struct Seat {
    std::function<void()> step;  ///< in the middle of a turn; may throw
    std::function<void()> wake;  ///< a peer has published something
    bool has_come = false;
    bool is_closed = false;  ///< it no longer takes part, or its process has ended
  };
  void come(LocalRank rank, Seat seat);
  void close(LocalRank rank);
  bool have_all_come() const;
  bool is_closed(LocalRank rank) const { return seats_[rank].is_closed; }

 private:
  void on_step(LocalRank rank) override;
  void on_change(LocalRank rank) override;

  std::vector<Seat> seats_;
};

class HostSums final : public worker::host::Sums {
 public:
  struct Config {
    worker::JobLabel alias;
    std::vector<Rank> ranks;  ///< of the host, ascending
    LocalRank self = 0;
    std::uint16_t of_job = 1;  ///< how many ranks the whole job has
    Session session;           ///< of the whole job
    Time deadline;             ///< for joining
  };
  HostSums(std::shared_ptr<HostGroup> group, Config config, HostGroup::Seat seat, Random random);
  ~HostSums() override;

  /// The process has ended.
  void die() {
    group_->end(config_.self);
    group_->close(config_.self);
  }
  /// Nothing is due before, unless a peer publishes something.
  Time next_deadline() const;

  State state() const override;
  const std::optional<Error>& failure() const override {
    return engine_ ? engine_->failure() : failure_;
  }
  const std::optional<AbortInfo>& abort_info() const override {
    return engine_ ? engine_->abort_info() : abort_info_;
  }
  std::uint32_t job() const override { return session_.job; }
  Rank rank() const override { return config_.ranks[config_.self]; }
  std::uint16_t ranks() const override { return session_.ranks; }
  const Session& session() const override { return session_; }
  std::string waits_for() const override { return "the ranks of this host"; }
  std::unique_ptr<Membership> join_pair(const Pair&, Time) override { return nullptr; }

  OpNumber submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
                  Time now) override;
  OpNumber submit(const worker::OpRequest& request, std::vector<worker::host::Part> parts,
                  Time now) override;
  OpNumber submit(worker::host::MoveSequence& moves, Time now) override;
  void set_timeout(OpNumber op, const worker::OpTimeout& timeout) override {
    ops_->set_timeout(op, timeout);
  }
  std::vector<worker::Completion> take_completions() override {
    return std::exchange(completions_, {});
  }
  bool has_completions() const override { return !completions_.empty(); }
  void notify_begun(bool is_wanted) override {
    if (engine_) engine_->notify_begun(is_wanted);
  }
  std::vector<OpNumber> take_begun() override { return engine_->take_begun(); }
  bool has_begun() const override { return engine_ && engine_->has_begun(); }
  RankSet awaited(OpNumber op) const override { return engine_->awaited(op); }
  RankSet awaited() const override { return engine_ ? engine_->awaited() : RankSet{}; }
  double progress(OpNumber op) const override { return engine_->progress(op); }
  void leave(Time now, Departure departure) override;
  void abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) override;
  bool on_time(Time now) override;
  bool arm(net::RxEvents&) override { return true; }
  bool awaits_arrivals() const override { return ops_ && ops_->awaits_arrivals(); }
  const worker::Counters& counters() const override { return counters_; }
  void count_on(const worker::Counters&) override {}

 private:
  /// Tensors of this rank's process, while peers may access them.
  class Mapped;
  /// Moves whose tensors are mapped, each until its end.
  class MappedMoves;
  /// Memory that peers read where it lies. Only the op knows when they have finished; a later read
  /// would be of freed memory.
  class Peers final : public worker::host::PeerAccess {
   public:
    explicit Peers(HostSums& sums) : sums_(sums) {}
    ~Peers() override;
    Peers(const Peers&) = delete;
    Peers& operator=(const Peers&) = delete;
    std::optional<worker::host::Place> place_of(std::span<const std::byte> bytes) override;
    const std::byte* read_at(worker::host::LocalRank peer, const worker::host::Place& place,
                             std::uint64_t bytes) override;

   private:
    HostSums& sums_;
    std::vector<std::uint64_t> regions_;
  };

  void start();
  OpNumber submit(worker::host::HostOpQueue::Call&& call, Time now);
  void collect();
  void close_if_over();
  std::optional<worker::host::Place> place_of(std::span<const std::byte> tensor);

  const std::shared_ptr<HostGroup> group_;
  const Config config_;
  Random random_;
  Session session_;
  const std::unique_ptr<worker::host::Board> board_;
  std::unique_ptr<worker::host::Engine> engine_;
  Time formed_due_ = kNever;
  // By peer: when this rank notices that it has gone; Time{}: it has noticed.
  std::vector<Time> lost_due_;
  bool has_left_ = false;
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  OpNumber next_op_ = 0;
  std::vector<std::span<std::byte>> mapped_;
  std::map<OpNumber, std::unique_ptr<Mapped>> tensors_;  // of ops without moves
  std::vector<std::uint64_t> regions_;
  Peers peers_{*this};
  std::optional<worker::host::HostOpQueue> ops_;
  std::vector<worker::Completion> completions_;
  worker::Counters counters_;
};

}  // namespace sluice::sim
