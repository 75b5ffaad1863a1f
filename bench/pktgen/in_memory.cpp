#include "bench/pktgen/in_memory.hpp"

#include <algorithm>
#include <bit>

#include "common/base/packet_memory.hpp"
#include "common/base/random_id.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/net/eal.hpp"
#include "common/protocol/secret.hpp"

namespace sluice::pktgen {
namespace {

constexpr std::size_t kEalMib = 64;
constexpr std::uint8_t kHistory = 8;

/// Each flow has a DATA and a RESULT under way, some more while packets are lost.
std::size_t frames_each_way(const Options& options) {
  const std::size_t flows = std::size_t{options.workers} * options.streams;
  return std::bit_ceil(std::clamp<std::size_t>(4 * flows, 1024, 1 << 18));
}

/// The results that the lane keeps, the contributions that it holds, and what is under way.
std::size_t payload_buffers(const Options& options) {
  const std::size_t per_stream = kHistory + options.workers + std::size_t{2};
  const std::size_t under_way = std::size_t{3} * options.workers;
  return 4096 + options.streams * (per_stream + under_way);
}

aggregator::EngineConfig engine_config(const Options& options, const GeneratorOptions& generator) {
  aggregator::EngineConfig config;
  config.streams = options.streams;
  config.history = kHistory;
  config.payload_bytes = generator.payload_bytes;
  config.job_memory_bytes_max = ~std::size_t{0};
  config.challenge_key = random_key();
  config.incarnation = random_id();
  config.unique = random_id;
  return config;
}

}  // namespace

Report run_in_memory(const Options& options, const Supervision& supervision) {
  const GeneratorOptions job = generator_options(options);
  const std::size_t frames = frames_each_way(options);
  const std::size_t buffers = payload_buffers(options);
  net::EalOptions eal_options;
  eal_options.memory_mib = kEalMib + ((buffers * packet_buffer_bytes(options.frame_bytes) +
                                       2 * frames * (kHeaderBufferBytes + sizeof(void*))) >>
                                      20);
  config::check_machine_has(eal_options.memory_mib);
  const net::Eal eal(eal_options);
  net::BufferPool payloads("payloads", buffers, job.payload_bytes);
  net::BufferPool headers("headers", frames, 0);

  net::MemoryLink link({.frames = frames, .mtu = options.frame_bytes}, payloads);
  net::FaultPlan faults;
  faults.seed = options.pattern.seed;
  faults.loss = options.loss;
  MemoryLane lane(engine_config(options, job), link, payloads, headers, faults);
  FarEnd far_end{.turn = [&](Time now) { lane.turn(now); },
                 .reading = [&] { return std::optional(lane.reading()); }};
  if (options.lane_cpu) {
    lane.start_thread(*options.lane_cpu);
    far_end.turn = [](Time) {};
  }
  Run<net::MemoryLink> run(options, job, link, link.far_end(MemoryLane::kUdpPort, 0), far_end,
                           supervision);
  return run.execute();
}

}  // namespace sluice::pktgen
