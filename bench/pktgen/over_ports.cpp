#include "bench/pktgen/over_ports.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include <sluice/error.hpp>

#include "bench/pktgen/run_lanes.hpp"
#include "common/config/log.hpp"
#include "common/net/clock.hpp"
#include "common/net/hand_over.hpp"
#include "worker/config/worker_settings.hpp"
#include "worker/loop/attachment.hpp"

namespace sluice::pktgen {
namespace {

/// Waits for the link, and for the answer to ARP.
Endpoint find(Attachment& attachment, Duration at_most) {
  const Time deadline = after(net::now(), at_most);
  while (net::now() < deadline) {
    if (const auto found = attachment.find(0, net::now())) return *found;
    attachment.io().receive([](const Endpoint&, Buffer) {});
    attachment.io().flush();
  }
  throw Error(ErrorCode::kAggregatorLost,
              "aggregator " + attachment.name_of(0) + " is not to be found: no answer to ARP");
}

/// Each lane's ranks have their own UDP ports, including those that an aggregator may choose for
/// them. So a packet that came to another lane's queue can be recognized.
void listen(GeneratorOptions& job, net::DatagramIo& io, net::HandOver& hand_over) {
  job.first_udp_port = static_cast<std::uint16_t>(job.first_udp_port + job.lane * job.workers);
  for (std::uint16_t r = 0; r < job.workers; ++r) {
    const auto udp_port = static_cast<std::uint16_t>(job.first_udp_port + r);
    io.listen(udp_port);
    hand_over.listens(job.lane, udp_port);
  }
  io.listen_to_source_ports(job.lane);
  for (std::uint16_t i = 0; i < kSourcePortsOfLane; ++i)
    hand_over.listens(job.lane, static_cast<std::uint16_t>(first_source_port(job.lane) + i));
}

}  // namespace

Report run_over_ports(const Options& options, const Supervision& supervision) {
  validate(options.context);
  const LogLevel level =
      config::parse_choice("log_level", config::kLogLevelChoices, options.context.log_level);
  Attachment attachment(options.context,
                        config::make_logger({.name = "sluice-pktgen", .level = level}),
                        options.lanes);
  const Endpoint aggregator = find(attachment, options.context.connect_timeout);
  const auto ios = attachment.split_queues(aggregator.port_id);
  check_lanes(options, ios.size());  // a local aggregator gives its port as many queues
  net::HandOver hand_over(options.lanes);
  std::vector<GeneratorOptions> jobs;
  for (std::uint16_t lane = 0; lane < options.lanes; ++lane) {
    GeneratorOptions& job = jobs.emplace_back(generator_options(options));
    job.lane = lane;
    job.integrity = attachment.computes_integrity();
    listen(job, *ios[lane], hand_over);
    if (options.lanes > 1) ios[lane]->join(hand_over, lane);
  }

  const auto on_link = [](std::uint16_t, bool up) {
    if (!up) throw Error(ErrorCode::kAggregatorLost, "the link to the aggregator went down");
  };
  return run_lanes(options, supervision, [&](std::uint16_t lane, Lockstep& lockstep) {
    FarEnd far_end{.turn = [](Time) {}, .reading = [] { return std::optional<LaneReading>(); }};
    if (lane == 0) far_end.turn = [&](Time now) { attachment.watch(now, on_link); };
    return Run<net::DatagramIo>(options, jobs[lane], *ios[lane], aggregator, far_end, supervision,
                                lockstep)
        .execute();
  });
}

}  // namespace sluice::pktgen
