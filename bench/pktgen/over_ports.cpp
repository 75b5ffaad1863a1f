#include "bench/pktgen/over_ports.hpp"

#include <cstdint>
#include <optional>

#include <sluice/error.hpp>

#include "bench/pktgen/lanes.hpp"
#include "common/config/log.hpp"
#include "common/net/clock.hpp"
#include "worker/attachment.hpp"
#include "worker/environment.hpp"

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

}  // namespace

Report run_over_ports(const Options& options, const Supervision& supervision) {
  validate(options.context);
  const LogLevel level =
      config::parse_choice("log_level", config::kLogLevelChoices, options.context.log_level);
  Attachment attachment(options.context,
                        config::make_logger({.name = "sluice-pktgen", .level = level}));
  net::DatagramIo& io = attachment.io();
  GeneratorOptions job = generator_options(options);
  job.integrity = attachment.computes_integrity();
  for (std::uint16_t r = 0; r < job.workers; ++r)
    io.listen(static_cast<std::uint16_t>(job.first_udp_port + r));
  const Endpoint aggregator = find(attachment, options.context.connect_timeout);

  const auto on_link = [](std::uint16_t, bool up) {
    if (!up) throw Error(ErrorCode::kAggregatorLost, "the link to the aggregator went down");
  };
  const FarEnd far_end{.turn = [&](Time now) { attachment.watch(now, on_link); },
                       .reading = [] { return std::optional<LaneReading>(); }};
  return run_lanes(options, supervision, [&](std::uint16_t, Lockstep& lockstep) {
    return Run<net::DatagramIo>(options, job, io, aggregator, far_end, supervision, lockstep)
        .execute();
  });
}

}  // namespace sluice::pktgen
