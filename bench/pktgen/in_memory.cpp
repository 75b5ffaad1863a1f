#include "bench/pktgen/in_memory.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/pktgen/run_lanes.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_memory.hpp"
#include "common/base/random_id.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/net/eal.hpp"
#include "common/protocol/secret.hpp"

namespace sluice::pktgen {
namespace {

constexpr std::size_t kEalMib = 64;
constexpr std::uint8_t kHistory = 8;

std::size_t streams_of_lane(const Options& options) {
  return (options.streams + options.lanes - std::size_t{1}) / options.lanes;
}

/// Each flow has a DATA and a RESULT under way, some more while packets are lost.
std::size_t frames_each_way(const Options& options) {
  const std::size_t flows = std::size_t{options.workers} * streams_of_lane(options);
  return std::bit_ceil(std::clamp<std::size_t>(4 * flows, 1024, 1 << 18));
}

/// The results that the lane keeps, the contributions that it holds back, and what is under way.
std::size_t payload_buffers(const Options& options) {
  const std::size_t per_stream = kHistory + options.workers + std::size_t{2};
  const std::size_t under_way = std::size_t{3} * options.workers;
  return 4096 + streams_of_lane(options) * (per_stream + under_way);
}

aggregator::EngineConfig engine_config(const Options& options, const GeneratorOptions& generator) {
  aggregator::EngineConfig config;
  config.shard = generator.lane;
  config.shards = config.lanes = options.lanes;
  config.streams = options.streams;
  config.history = kHistory;
  config.payload_bytes = generator.payload_bytes;
  config.job_memory_bytes_max = ~std::size_t{0};
  config.challenge_key = random_key();
  config.incarnation = random_id();
  config.unique = random_id;
  return config;
}

/// One lane and the generator of its share of the job, with their own memory.
class Bed {
 public:
  Bed(const Options& options, std::uint16_t lane)
      : options_(options),
        number_(std::to_string(lane)),
        job_(generator_options(options)),
        payloads_("payloads-" + number_, payload_buffers(options), job_.payload_bytes),
        headers_("headers-" + number_, frames_each_way(options), 0),
        link_({.name = "memory" + number_,
               .frames = frames_each_way(options),
               .mtu = options.frame_bytes},
              payloads_) {
    job_.lane = lane;
    // The aggregator cannot fail alone: while this process does not run, nothing comes from it.
    job_.aggregator_timeout = std::chrono::milliseconds(limits::kMaxTimeoutMs);
    faults_.seed = options.pattern.seed;
    faults_.loss = options.loss;
  }

  /// To be called on the thread on which it runs.
  LaneRun run(const Supervision& supervision, Lockstep& lockstep) {
    MemoryLane lane(job_.lane, engine_config(options_, job_), link_, payloads_, headers_, faults_);
    FarEnd far_end{.turn = [&](Time now) { lane.turn(now); },
                   .reading = [&] { return std::optional(lane.reading()); }};
    if (options_.lane_cpu) {
      lane.start_thread(*options_.lane_cpu);
      far_end.turn = [](Time) {};
    }
    return Run<net::MemoryLink>(options_, job_, link_, link_.far_end(MemoryLane::kUdpPort, 0),
                                far_end, supervision, lockstep)
        .execute();
  }

 private:
  const Options& options_;
  const std::string number_;
  GeneratorOptions job_;
  net::BufferPool payloads_;
  net::BufferPool headers_;
  net::MemoryLink link_;
  net::FaultPlan faults_;
};

}  // namespace

Report run_in_memory(const Options& options, const Supervision& supervision) {
  const std::size_t frames = frames_each_way(options);
  const std::size_t buffers = payload_buffers(options);
  net::EalOptions eal_options;
  eal_options.memory_mib =
      kEalMib + ((options.lanes * (buffers * packet_buffer_bytes(options.frame_bytes) +
                                   2 * frames * (kHeaderBufferBytes + sizeof(void*)))) >>
                 20);
  config::check_machine_has(eal_options.memory_mib);
  const net::Eal eal(eal_options);
  std::vector<std::unique_ptr<Bed>> beds;
  for (std::uint16_t lane = 0; lane < options.lanes; ++lane)
    beds.push_back(std::make_unique<Bed>(options, lane));
  return run_lanes(options, supervision, [&](std::uint16_t lane, Lockstep& lockstep) {
    return beds[lane]->run(supervision, lockstep);
  });
}

}  // namespace sluice::pktgen
