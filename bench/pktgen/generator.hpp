// Acts as all ranks of one job at one aggregator, or at one of its lanes: packets and the time come
// in, packets go out. It has no I/O, threads or clocks, as the worker's engine, and keeps the same
// rules (docs/protocol.md, rules 1 to 11 and 24 to 25). But it has no tensors: blocks have known
// values, and which of them are non-zero is known beforehand (BlockSchedule). So a packet costs a
// header, a copy and little more.
//
// Each rank has its own UDP port, first_udp_port + rank or the one that the aggregator chooses for
// it, and a ShardMembership of the worker's library that joins, keeps alive and leaves. Each rank
// and stream has a Flow. Ops follow each other until finish(); then the flows end with the last op
// that any of them has begun.
//
// DATA that is due waits in a queue until send_ready() sends it: so the caller controls the rate.
// Repetitions and acknowledgements are sent at once.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/error.hpp>

#include "bench/pktgen/block_schedule.hpp"
#include "bench/pktgen/flow.hpp"
#include "bench/pktgen/known_values.hpp"
#include "bench/pktgen/tally.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/source_ports.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "worker/engine/shard_membership.hpp"

namespace sluice::pktgen {

struct GeneratorOptions {
  std::uint32_t job = 1;
  std::uint16_t workers = 8;
  std::uint16_t streams = 64;
  std::uint16_t block_elements = 256;
  std::uint16_t payload_bytes = 1472;
  std::uint16_t first_udp_port = 20'000;
  std::uint16_t lane = 0;  ///< of the aggregator; only its streams are served
  PatternOptions pattern;
  Duration rto_min = std::chrono::milliseconds(20);  ///< the shortest time-out
  Duration aggregator_timeout = defaults::kAggregatorTimeout;
  std::uint32_t check_every = 64;  ///< one of so many results is checked; 0: none is
  bool integrity = false;          ///< packets carry a CRC32C
};

class Generator {
 public:
  /// `aggregator` is where its lane 0 listens; its local_udp_port is set here.
  Generator(const GeneratorOptions& options, const Endpoint& aggregator);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  /// Begins to join; call it once. `decided` is what lane 0 has agreed, for the other lanes.
  void start(const std::optional<Session>& decided, Time now, PacketSink& sink);
  bool active() const { return !flows_.empty(); }

  void receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink);

  /// Sends at most `most` packets of the DATA that is due; returns how many.
  std::size_t send_ready(std::size_t most, Time now, PacketSink& sink);

  /// To be called every turn; it looks at its timers about once in a millisecond.
  void on_time(Time now, PacketSink& sink);

  /// Begins no further op, except those that some rank has begun.
  void finish();
  bool finished() const { return running_ == 0; }
  /// Ends the flows that still run; ranks that have joined inform the aggregator.
  void give_up(PacketSink& sink);

  /// Begins to leave; call it only when finished.
  void leave(Time now, PacketSink& sink);
  bool left() const;

  /// Why the job ended early.
  const std::optional<Error>& failure() const { return failure_; }
  const Session& session() const { return ranks_.front().membership->agreed(); }  ///< once active
  const BlockSchedule& schedule() const { return *schedule_; }                    ///< once active
  const Tally& tally() const { return tally_; }

  /// Nanoseconds from a DATA to the RESULT that it completed, since it was last cleared.
  Histogram& latencies() { return latencies_; }

 private:
  using Say = rounds::WaitingEnd::Say;

  struct RankState {
    worker::EngineConfig config;  // the membership refers to it
    std::unique_ptr<worker::ShardMembership> membership;
    wire::Data data;  // the part that is the same in all DATA of this rank
  };

  static constexpr Duration kLookPeriod = std::chrono::milliseconds(1);

  Flow& flow(StreamId s, Rank r) {
    return flows_[std::size_t{s.value} / session().shards * ranks_.size() + r.value];
  }

  // Received packets.
  std::optional<Rank> rank_at(std::uint16_t udp_port) const;
  wire::Challenge with_own_port(Rank r, wire::Challenge challenge);
  DropReason on_result(Rank r, std::span<const std::byte> bytes, Time now, PacketSink& sink);
  DropReason read_result(Rank r, std::span<const std::byte> bytes, wire::Result& result) const;
  void sample_latency(const Flow& x, const wire::Result& result, Time now);
  void apply(Flow& x, Time now, PacketSink& sink);
  DropReason on_other(Rank r, const Endpoint& from, const Packet& packet, Time now,
                      PacketSink& sink);
  DropReason on_delivery(Rank r, const Packet& packet, Time now, PacketSink& sink);
  void ended(worker::ShardMembership& membership, const Error& why);
  void welcomed();
  void check(const Flow& x, std::span<const std::byte> bytes);
  bool is_right(const Flow& x, const Packet& packet) const;

  // Progress.
  void begin_op(Flow& x, OpNumber op);
  void next_round(Flow& x);
  void go_on(Flow& x, Time now, PacketSink& sink);
  void enqueue(Flow& x);
  void on_timer(Flow& x, Time now, PacketSink& sink);
  void say(Flow& x, Say what, bool ask, Time now, PacketSink& sink);
  rounds::WaitingScope waiting(const Flow& x, Time now) const;

  // Sending.
  void send_data(Flow& x, bool ask, Time now, PacketSink& sink);
  void send_ack(Flow& x, PacketSink& sink);
  void send_probe(Flow& x, Time now, PacketSink& sink);
  template <class T>
  bool send_small(Flow& x, T packet, PacketSink& sink);
  void send(Rank r, Buffer buffer, PacketSink& sink);

  const GeneratorOptions options_;
  std::vector<RankState> ranks_;
  std::array<std::optional<Rank>, kSourcePortsOfLane> at_source_ports_;
  std::optional<BlockSchedule> schedule_;
  std::optional<KnownValues> values_;
  wire::Descriptor descriptor_;
  std::size_t columns_bytes_ = 0;
  std::vector<Flow> flows_;  // those of one stream are neighbours, by rank
  std::size_t running_ = 0;
  OpNumber last_op_ = ~OpNumber{0};

  // The flows whose DATA is due, each at most once. It is a ring.
  std::vector<Flow*> ready_;
  std::size_t ready_begin_ = 0;
  std::size_t ready_count_ = 0;

  std::uint32_t until_check_ = 1;  // results, including this one
  Time look_due_{};
  ControlPackets control_;
  std::optional<Error> failure_;
  Tally tally_;
  Histogram latencies_;
};

}  // namespace sluice::pktgen
