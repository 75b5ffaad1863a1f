// A lane: one thread that polls its queue of every port and runs one engine. Lanes share only the
// rings by which frames are handed over. Other threads post commands, which run between two turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aggregator/engine/config.hpp"
#include "aggregator/engine/counters.hpp"
#include "aggregator/engine/engine.hpp"
#include "aggregator/monitoring/figures.hpp"
#include "common/base/idle.hpp"
#include "common/log/logger.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/hand_over.hpp"

namespace sluice::aggregator {

struct LaneOptions {
  std::uint16_t number = 0;              ///< among the daemon's lanes
  net::HandOver* hand_over = nullptr;    ///< to the other lanes; null if there are none
  std::vector<std::uint16_t> udp_ports;  ///< where it listens
  IdleStrategy idle = IdleStrategy::kBackOff;
  int cpu = -1;  ///< core to run on; -1: any core
  net::FaultPlan faults{};
};

class Lane {
 public:
  /// The name of the thread: at most 15 characters.
  static std::string thread_name(std::uint16_t number) {
    return "sluice-lane-" + std::to_string(number);
  }

  /// Events of jobs, and of the lane itself.
  struct Events {
    JobEvents of_jobs;
    Duration longest_pause{};  ///< the longest time without a turn
  };

  /// Starts the thread. The pools must outlive the lane.
  Lane(const LaneOptions& options, EngineConfig config, net::BufferPool& payloads,
       net::BufferPool& headers, std::shared_ptr<spdlog::logger> logger);

  ~Lane() { end(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Begins to poll a port.
  void attach(const net::PortView& port);

  /// Stops polling a port whose peers are dead, then calls `released` on the lane's thread.
  void detach(std::uint16_t port_id, std::function<void()> released);

  /// See Engine::adjust.
  void adjust(const EngineConfig& to);

  /// See Engine::close, Engine::retire.
  void close(bool closed);
  void retire();
  bool retired();

  /// Ends a job at this lane and informs its ranks. Returns nothing if the lane makes no turn in
  /// time, and will do it later. This and the next two are for the control thread.
  std::optional<bool> kick(std::uint32_t job);
  /// See Engine::limit_streams. Returns nothing in the same case as kick().
  std::optional<bool> limit_streams(std::uint32_t job, std::uint16_t streams);

  /// See net::DatagramIo::capture. The lane may use it for one turn longer.
  void capture(std::shared_ptr<net::Capture> capture);

  /// Ends the thread. Ports may be closed afterwards.
  void end();

  /// The counters between two turns, or at the end. If the lane makes no turn in time, the last
  /// known ones. For one thread.
  LaneFigures snapshot();
  Events take_events();
  std::size_t live_jobs();  ///< only the number of jobs, which costs less

  /// How many turns have begun. Does not wait for the lane.
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  using Command = std::function<void(Time)>;

  void post(Command command);
  template <class T, class F>
  void ask(T& known, F question);
  void run();
  void run_commands(Time now);
  void keep(const JobEvent& event);
  void pause_ended(Duration pause);
  LaneFigures take_snapshot(Time now);
  void pin() const;

  const LaneOptions options_;
  const std::shared_ptr<spdlog::logger> logger_;
  const Duration long_turn_;  // longer turns count as a pause of ours
  net::DatagramIo io_;
  Engine engine_;
  std::mutex mutex_;
  std::vector<Command> commands_;  // guarded by mutex_
  Events events_;                  // guarded by mutex_
  Duration busy_{};                // the time of turns with work
  Duration command_time_{};
  LaneWaits waited_;
  std::atomic<bool> commanded_{false};  // there are commands
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> turns_{0};
  LaneFigures known_;                // written by the thread that asked last
  std::size_t known_live_jobs_ = 0;  // written by the thread that asked last
  bool known_retired_ = false;
  std::thread thread_;
};

}  // namespace sluice::aggregator
