// One shard of the simulation, an aggregator or a lane of one: the engine, in one or more
// successive lives. The lanes of one aggregator live and die together.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "common/base/ids.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/source_ports.hpp"
#include "tests/sim/counting.hpp"
#include "tests/sim/host.hpp"
#include "tests/sim/wait_watch.hpp"

namespace sluice::aggregator {
struct EngineConfig;
struct JobEvent;
class Engine;
}  // namespace sluice::aggregator

namespace sluice::sim {

class AggregatorProcess final : public Process {
 public:
  enum class Role { kPrimary, kStandby };

  AggregatorProcess(World& world, unsigned shard, Role role);
  ~AggregatorProcess() override;

  /// Is called when a rank is declared failed for its silence.
  std::function<void(const AggregatorProcess&, std::uint32_t job, unsigned rank)> on_given_up;
  /// The first is called when it retires, the second when it was killed or has ended; kNever: it
  /// does not boot again.
  std::function<void(const AggregatorProcess&)> on_retired;
  std::function<void(const AggregatorProcess&, Time back)> on_killed;

  void boot();
  /// Sends its ranks to the next aggregator. It ends when all are informed, or after a while; or,
  /// with kAlong, when another lane of its process ends.
  enum class Retires { kItself, kAlong };
  void retire(Retires how);
  /// The same, and boots again after it was down for so long; nothing: it ends for good.
  void shut_down(std::optional<Duration> down = {});
  void kill(Time back);  ///< until then, together with its process; does nothing if it is down
  void disconnect(std::uint16_t port_id);
  void faults_end();
  void pause(Duration length) { host_.pause(length); }
  void set_dry(bool dry) { host_.sink().pool().dry = dry; }

  unsigned shard() const { return shard_; }
  bool is_standby() const { return role_ == Role::kStandby; }
  Endpoint endpoint() const { return host_.self(); }
  bool up() const { return engine_ != nullptr; }
  bool idle() const;
  std::size_t buffers_in_use() { return host_.sink().pool().live; }
  unsigned crashes() const { return crashes_; }
  bool ended() const { return ended_; }  ///< for good
  Time ended_at() const { return ended_at_; }
  Time retired_at() const { return retired_at_; }  ///< when it last began to; Time{}: never
  /// It has sent a WELCOME: the rank has this token from now on.
  void note_welcome(std::uint32_t job, unsigned rank, std::uint64_t token);
  /// Whether it has given this token in its current life, and has not ended the job since.
  bool knows(std::uint32_t job, std::uint64_t token) const;
  std::uint64_t incarnation() const { return incarnation_; }  ///< of its current life
  /// When the newest KEEPALIVE of the rank with new contents came, or the job formed.
  Time last_sign(std::uint32_t job, unsigned rank) const;
  /// When the last packet of the rank came that had not come before.
  Time last_news(std::uint32_t job, unsigned rank) const;
  /// Whether any packet of the rank except a HELLO ever came.
  bool ever_heard(std::uint32_t job, unsigned rank) const;
  /// When the job last formed or resumed here; Time{}: never.
  Time formed_at(std::uint32_t job) const;
  /// When the first KEEPALIVE came with the rank's last token; nothing: none has.
  std::optional<Time> member_since(std::uint32_t job, unsigned rank) const;
  /// Adds the counters of all its lives.
  void add_to(Coverage& coverage);

 private:
  aggregator::EngineConfig config();
  SourcePorts source_ports(const Endpoint& from, Rank rank) const;
  void on_packet(const Arrival& arrival, Buffer buffer) override;
  void on_turn() override;
  void on_pause_over(Duration pause, const std::function<void()>& take_packets) override;
  void note_sign(const Bytes& datagram);
  void on_event(const aggregator::JobEvent& event);
  void settle();
  void check();
  void read_waits();
  void plan_end();
  bool ends_now() const;
  void crash();
  void end_life();

  World& world_;
  const unsigned shard_;
  const Role role_;
  Host host_;
  Random ids_;
  std::unique_ptr<aggregator::Engine> engine_;
  std::deque<Crash> crashes_to_come_;
  std::uint64_t retires_at_ = Sink::kUnlimited;  // packets sent
  bool retires_ = false;
  Time retired_at_{};
  Time retired_by_ = kNever;  // when it ends itself
  Duration long_turn_{};      // a longer turn is a pause
  std::uint64_t incarnation_ = 0;
  std::unordered_map<std::uint32_t, std::unordered_set<std::uint64_t>> given_;  // tokens, by job
  unsigned crashes_ = 0;
  unsigned boots_ = 0;
  bool ended_ = false;
  Time ended_at_{};
  // Job -> the most buffers that it may keep.
  std::unordered_map<std::uint32_t, std::size_t> bounds_;
  std::unordered_map<std::uint32_t, Time> formed_at_;
  struct Sign {
    std::uint64_t token = 0;
    std::uint64_t number = 0;
    Time first{};
    Time at{};
  };
  std::unordered_map<std::uint64_t, Sign> signs_;      // by job and rank
  std::unordered_set<std::size_t> heard_;              // hashes of members' packets
  std::unordered_map<std::uint64_t, Time> last_news_;  // by job and rank
  WaitWatch waits_;
  Time waits_read_at_{};
  Coverage totals_;
};

}  // namespace sluice::sim
