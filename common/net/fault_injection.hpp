// Injects faults into the traffic of a port: between DatagramIo and the port's bursts, frame by
// frame, in an order that a seed determines. It is for tests on real processes and for trying out a
// network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "common/base/time.hpp"
#include "common/net/fault_plan.hpp"
#include "common/net/io_counters.hpp"
#include "common/net/pool.hpp"

struct rte_mbuf;

namespace sluice::net {

/// One direction of one port. Frames that go in come out late, twice, damaged or not at all.
class FaultInjector {
 public:
  enum class Direction : std::uint8_t { kReceiving, kSending };

  static constexpr Duration kHoldTime = std::chrono::milliseconds(2);
  static constexpr std::size_t kHeldMax = 64;

  /// Copies come from `copies`; if it is empty, a frame that needs a copy stays as it is. Each port
  /// of a process has faults of its own.
  FaultInjector(const FaultPlan& plan, std::uint16_t port_id, Direction direction,
                BufferPool& copies);
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  /// Takes over `frame`.
  void take(rte_mbuf* frame, IoCounters& counters);

  /// Writes the frames that continue, in order, to `out`; returns their number.
  std::size_t pass_on(std::span<rte_mbuf*> out);

  /// The number of frames that pass_on() would return, without those that are held back.
  std::size_t ready() const { return ready_.size(); }

 private:
  struct Held {
    rte_mbuf* frame;
    std::uint64_t until;  // continues once so many frames were taken
    Time deadline;
  };
  struct Counted {
    std::uint64_t IoCounters::*lost;
    std::uint64_t IoCounters::*duplicated;
    std::uint64_t IoCounters::*reordered;
    std::uint64_t IoCounters::*flipped;
  };

  static Counted counted(Direction direction);
  bool happens(double probability);
  void damage(rte_mbuf* frame, IoCounters& counters);
  template <class Due>
  void release(const Due& due);
  rte_mbuf* copy(const rte_mbuf* frame);
  rte_mbuf* flip(rte_mbuf* frame, IoCounters& counters);

  const FaultPlan plan_;
  const Counted counted_;
  BufferPool& copies_;
  std::mt19937_64 random_;
  std::deque<rte_mbuf*> ready_;
  std::vector<Held> held_;
  std::uint64_t taken_ = 0;
};

}  // namespace sluice::net
