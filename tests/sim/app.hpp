// The caller on one rank: it joins, calls its ops, checks each result, overwrites the tensors that
// it has back, and leaves. After an error it comes back if the plan has a further generation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/sim/device_tensor.hpp"
#include "tests/sim/job.hpp"
#include "tests/sim/rank_membership.hpp"
#include "worker/engine/keyed_operation.hpp"

namespace sluice {
struct OpStatistics;
}  // namespace sluice

namespace sluice::worker {
struct Completion;
struct EngineConfig;
struct OpRequest;
}  // namespace sluice::worker

namespace sluice::sim {

/// The second process of a duplicate rank is not in the plan.
enum class Role { kMember, kIntruder };

class App final : public Process {
 public:
  App(World& world, Job& job, const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators,
      unsigned rank, std::uint16_t port_id, Role role);
  ~App() override;

  void begin(std::size_t program);  ///< joins
  void kill();
  /// Calls `die` in the middle of a turn, after so many steps.
  void die_after(std::uint64_t steps, std::function<void()> die);
  void pause(Duration length) { host_.pause(length); }
  void set_dry(bool dry) { host_.sink().pool().dry = dry; }

  unsigned rank() const { return rank_; }
  std::uint16_t port_id() const { return host_.self().port_id; }
  bool is_victim() const { return rank_ == job_.plan.victim; }
  Time active_since() const { return active_since_; }  ///< in its last generation; else kNever
  std::size_t program() const { return program_; }
  bool over() const { return gone_; }
  bool dead() const { return dead_; }
  bool intruder() const { return role_ == Role::kIntruder; }
  std::string state() const;

  /// To be called after the simulation: checks that everything ended as it must.
  void check_end() const;
  void add_to(Coverage& coverage) const;
  std::uint64_t ops_ended_well() const { return ops_ok_; }

 private:
  struct OpenOp {
    OpSpec spec;
    Tensor tensor;
    std::vector<std::byte> input;  ///< a copy of the tensor's data at the time of the call
    std::vector<Range> wanted;
    std::vector<std::byte> output;  ///< out of place
    Pairs pairs;                    ///< of a keyed op, which has no tensor
    worker::KeyedSums sums;
    unsigned chunk_bits = 0;
    /// Its tensor is on a device; null: it is in host memory.
    std::shared_ptr<DeviceTensor> device;
    std::size_t index = 0;
    std::uint32_t block_elements = 1;
    Time began{};

    /// The memory that the engine reads.
    std::span<std::byte> read() { return device ? device->host_input() : std::span(tensor.data); }
  };

  struct Died {};
  void step();
  template <class F>
  void unless_it_dies(F&& turn);
  worker::EngineConfig config();
  Endpoint place_of(const AggregatorProcess& aggregator) const;
  std::vector<Endpoint> places_of(unsigned aggregator) const;
  void on_packet(const Arrival& arrival, Buffer buffer) override;
  void on_turn() override;
  void on_pause_over(Duration pause, const std::function<void()>& take_packets) override;
  void settle();
  void judge_refusal(const std::vector<std::byte>& datagram) const;
  void work();
  const OpSpec& spec(std::size_t index) const;
  std::size_t ops_to_call() const;
  void leave();
  void submit();
  void put_on_device(OpenOp& op, worker::OpRequest& request);
  std::size_t chunks_of(const OpSpec& op) const;
  void copy_later(const std::weak_ptr<DeviceTensor>& device);
  void submit_pairs(OpenOp op);
  void hand_over(worker::OpRequest request, const std::vector<std::uint64_t>& counts);
  bool may_time_out(std::size_t index) const;
  void completed(const worker::Completion& completion);
  void check_result(const OpenOp& op, const OpStatistics& statistics);
  void check_counts(const OpenOp& op, const Outcome& outcome, const OpStatistics& statistics) const;
  void hand_back(OpenOp op);
  void failed(const Error& error);
  void left();
  void end_life();
  void check();
  Duration random_pause(Duration most);

  World& world_;
  Job& job_;
  const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators_;
  const unsigned rank_;
  const Role role_;
  Host host_;
  Random random_;
  Random device_random_;  // a separate generator, so that tensors on devices change little else
  std::unique_ptr<RankMembership> membership_;
  std::uint64_t steps_to_death_ = 0;
  std::function<void()> die_;  ///< called then; null: it does not die
  std::size_t program_ = 0;
  std::size_t next_op_ = 0;
  Time pause_until_{};
  Time due_ = kNever;           // by the host's clock: the deadline of the open op with a time-out
  Time began_{};                ///< start of this generation
  Time active_since_ = kNever;  ///< in this generation
  bool leaving_ = false;
  std::map<OpNumber, OpenOp> open_;
  std::vector<std::vector<std::byte>> own_again_;  ///< overwritten; must not change any more
  // The membership of the process that died: peers may still read its memory.
  std::unique_ptr<RankMembership> left_behind_;
  std::map<OpNumber, OpenOp> left_open_;
  unsigned failures_ = 0;
  bool gone_ = false;
  bool dead_ = false;
  bool completed_last_ = false;
  bool excused_ = false;  ///< it failed for good, and the failure has a cause
  std::uint64_t ops_ok_ = 0;
  Coverage totals_;
};

}  // namespace sluice::sim
