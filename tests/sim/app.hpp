// The caller on one rank: joins, calls its ops, checks each result and scribbles over the tensors
// that are its own again, leaves; comes back after an error where the plan has a further life.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/sim/job.hpp"
#include "worker/engine.hpp"

namespace sluice::sim {

/// The second process of a duplicate rank is not the plan's own.
enum class Role { kMember, kIntruder };

class App {
 public:
  App(World& world, Job& job, const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators,
      unsigned rank, std::uint16_t port_id, Role role);
  ~App();

  void begin(std::size_t program);  ///< joins
  void kill();
  void set_dry(bool dry) { sink_.pool().dry = dry; }

  unsigned rank() const { return rank_; }
  std::uint16_t port_id() const { return sink_.self().port_id; }
  Address address() const { return sink_.self().ipv4; }
  bool is_victim() const { return rank_ == job_.plan.victim; }
  bool running() const { return engine_ != nullptr; }
  std::size_t program() const { return program_; }
  bool over() const { return gone_; }
  bool dead() const { return dead_; }
  bool intruder() const { return role_ == Role::kIntruder; }
  bool has_applied_results() const { return engine_ && engine_->counters().results_applied > 0; }
  std::string state() const;

  /// After the simulation: everything ended as it must.
  void check_end() const;
  const Coverage& totals() const { return totals_; }
  std::uint64_t ops_ended_well() const { return ops_ok_; }

 private:
  struct OpenOp {
    OpSpec spec;
    Tensor tensor;
    std::vector<std::byte> output;  ///< out of place
    std::size_t index = 0;
    std::uint32_t block_elements = 1;
    Time began{};
  };

  worker::EngineConfig config();
  void receive(const Bytes& datagram);
  void settle();
  void work();
  const OpSpec& spec(std::size_t index) const;
  std::size_t ops_to_call() const;
  void submit();
  void completed(const worker::Completion& completion);
  void check_result(const OpenOp& op, const OpStatistics& statistics);
  void check_lateness(const OpenOp& op, const Error& error) const;
  void hand_back(OpenOp op);
  void failed(const Error& error);
  void left();
  void end_life();
  void check() const;
  void wake(Time at);
  Duration random_pause(Duration most);

  World& world_;
  Job& job_;
  const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators_;
  const unsigned rank_;
  const Role role_;
  Sink sink_;
  Random random_;
  std::unique_ptr<worker::Engine<Sink>> engine_;
  std::uint64_t life_ = 0;
  std::size_t program_ = 0;
  std::size_t next_op_ = 0;
  Time pause_until_{};
  bool leaving_ = false;
  std::map<OpNumber, OpenOp> open_;
  std::vector<std::vector<std::byte>> own_again_;  ///< scribbled over; must stay so
  Time wake_at_ = kNever;
  unsigned failures_ = 0;
  bool gone_ = false;
  bool dead_ = false;
  bool completed_last_ = false;
  bool excused_ = false;  ///< failed for good, with a cause
  std::uint64_t ops_ok_ = 0;
  Coverage totals_;
};

}  // namespace sluice::sim
