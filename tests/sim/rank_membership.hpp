// A rank's membership in its job, with the turns that the library's progress loop gives it. It
// consists of a membership at the aggregators and, once the ranks have found that some of them are
// on one host, the memberships of a hierarchy.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tests/sim/engine_membership.hpp"
#include "tests/sim/host.hpp"
#include "tests/sim/host_sums.hpp"
#include "worker/hierarchy/hierarchical_membership.hpp"

namespace sluice::sim {

class Job;

class RankMembership final : worker::hierarchy::Joining {
 public:
  /// Begins to join. `step` is called in the middle of a turn, before each action that peers can
  /// see; it may throw.
  RankMembership(World& world, Job& job, Host& host, worker::EngineConfig config,
                 std::vector<Endpoint> aggregators, Random& random, std::function<void()> step,
                 std::function<void()> turn);

  void receive(const Endpoint& from, Buffer buffer);
  void on_time();
  void excuse_pause(Duration pause);
  Time next_deadline() const;  ///< by the host's clock

  Membership& operator*() { return *membership_; }
  const Membership& operator*() const { return *membership_; }
  Membership* operator->() { return membership_.get(); }
  const Membership* operator->() const { return membership_.get(); }
  /// Joining until all its memberships have joined.
  Membership::State state() const;
  bool over() const { return state() >= Membership::State::kLeft; }
  void check_end() const;  ///< for what is over
  bool is_of_hosts() const { return hierarchy_ != nullptr; }
  /// The engine in the job of all ranks.
  const worker::Engine& engine() const { return whole_->engine(); }
  std::size_t most_buffers() const;
  bool has_completions() const { return !tells_host() && membership_->has_completions(); }
  std::vector<worker::Completion> take_completions() {
    return tells_host() ? std::vector<worker::Completion>() : membership_->take_completions();
  }
  /// A real loop turns all the time; this one must be told that there is something to do.
  void turn_soon() {
    if (hierarchy_) host_.wake(host_.now() + kTurn);
  }
  /// The process has ended. What peers may still read stays.
  void die();
  void for_each_group(const std::function<void(std::uint32_t group)>& f) const;

 private:
  std::unique_ptr<worker::host::Sums> join_host(std::uint32_t job) override;
  std::unique_ptr<Membership> join_rail(const worker::hierarchy::Rail& rail) override;

  bool tells_host() const { return told_op_ && !hierarchy_; }
  void tell_host();
  void join_hosts();
  void note_placement() const;

  World& world_;
  Job& job_;
  Host& host_;
  const worker::EngineConfig config_;
  const std::vector<Endpoint> aggregators_;
  Random& random_;
  const std::function<void()> step_;
  const std::function<void()> turn_;
  std::unique_ptr<Membership> membership_;
  EngineMembership* whole_ = nullptr;  // this membership, or a part of the hierarchy
  // The exchange of the ranks' host ids.
  std::optional<OpNumber> told_op_;
  std::uint64_t own_host_ = 0;
  std::vector<std::uint64_t> hosts_;
  std::optional<worker::hierarchy::Placement> placement_;
  worker::hierarchy::HierarchicalMembership* hierarchy_ = nullptr;  // this, if there are hosts
  EngineMembership* rail_ = nullptr;
  std::vector<HostSums*> of_host_;
};

}  // namespace sluice::sim
