#include "worker/loop/metrics_server.hpp"

#include <chrono>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/text_serializer.h>

#include "common/base/version.hpp"
#include "common/config/address.hpp"
#include "common/http/server.hpp"
#include "common/metrics/family.hpp"
#include "worker/loop/progress.hpp"

namespace sluice {
namespace {

using metrics::Family;
using Type = Family::Type;

constexpr Duration kOldest = std::chrono::milliseconds(200);

class Text {
 public:
  explicit Text(const ProcessFigures& figures) : figures_(figures) {
    all_.reserve(64);  // references to families stay valid while they are filled
    family(Type::Gauge, "build_info", "1, labelled with the version and the build.")
        .add({"version", version(), "build", build_id()}, 1.0);
    of_process();
    of_jobs();
    of_ops();
    of_paths();
  }

  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, all_);
    return std::move(out).str();
  }

 private:
  Family family(Type type, const std::string& name, std::string_view help) {
    return {all_, type, "worker_" + name + (type == Type::Counter ? "_total" : ""), help};
  }
  template <class Get>
  void by_job(Type type, const std::string& name, std::string_view help, Get&& get) {
    Family one = family(type, name, help);
    for (const JobFigures& job : figures_.jobs)
      one.add({"job_id", std::to_string(job.job), "rank", std::to_string(job.rank.value)},
              get(job));
  }
  template <class Get>
  void by_path(const std::string& name, std::string_view help, Get&& get) {
    Family one = family(Type::Gauge, name, help);
    for (const JobFigures& job : figures_.jobs)
      for (std::size_t shard = 0; shard < job.paths.size(); ++shard)
        one.add({"job_id", std::to_string(job.job), "rank", std::to_string(job.rank.value), "shard",
                 std::to_string(shard)},
                get(job.paths[shard]));
  }

  void of_process() {
    const auto of_io = [&](const char* name, const char* help, std::uint64_t value) {
      family(Type::Counter, name, help).add({}, value);
    };
    of_io("sent_datagrams", "Datagrams that the process sent.", figures_.io.tx_datagrams);
    of_io("sent_bytes", "UDP payload of these.", figures_.io.tx_bytes);
    of_io("received_datagrams", "Datagrams that the process received.", figures_.io.rx_datagrams);
    of_io("received_bytes", "UDP payload of these.", figures_.io.rx_bytes);
  }

  void of_jobs() {
    for (const auto& counter : worker::kCounterNames)
      if (!counter.help.empty())
        by_job(Type::Counter, std::string(counter.name), counter.help,
               [&](const JobFigures& job) { return job.counters.*counter.member; });
    by_job(Type::Counter, "packets_dropped",
           "Datagrams received that were of no use, or not valid.",
           [](const JobFigures& job) { return job.counters.drops.total(); });
    by_job(Type::Gauge, "job_failed", "Whether the job has failed for this rank.",
           [](const JobFigures& job) { return job.has_failed ? 1.0 : 0.0; });
    by_job(Type::Gauge, "job_ranks", "Ranks of the job.",
           [](const JobFigures& job) { return static_cast<double>(job.ranks); });
    by_job(Type::Gauge, "ops_pending", "Ops that are not done.",
           [](const JobFigures& job) { return static_cast<double>(job.ops_pending); });
    by_job(Type::Gauge, "streams_running", "Streams that await a result.",
           [](const JobFigures& job) { return static_cast<double>(job.running_streams); });
  }

  void of_ops() {
    Family ops = family(Type::Counter, "ops", "Ops that ended, by kind and result.");
    for_each_kind([&](const auto& job, const auto& rank, const auto& kind,
                      const OpTotals::OfKind& of, std::uint64_t completed) {
      ops.add({"job_id", job, "rank", rank, "kind", kind, "result", "completed"}, completed);
      ops.add({"job_id", job, "rank", rank, "kind", kind, "result", "failed"}, of.failed);
    });
    Family time{all_, Type::Histogram, "worker_op_seconds",
                "Time from the call of an op to its completion."};
    for_each_kind([&](const auto& job, const auto& rank, const auto& kind,
                      const OpTotals::OfKind& of, std::uint64_t) {
      time.add({"job_id", job, "rank", rank, "kind", kind}, of.time);
    });
    by_job(Type::Counter, "blocks", "Blocks of the tensors of completed ops.",
           [](const JobFigures& job) { return job.ops.blocks; });
    by_job(Type::Counter, "blocks_sent", "Of these, blocks of this rank that were sent.",
           [](const JobFigures& job) { return job.ops.blocks_sent; });
    by_job(Type::Counter, "blocks_withheld", "Of these, blocks that were not sent: all zeros.",
           [](const JobFigures& job) {
             return job.ops.blocks - std::min(job.ops.blocks, job.ops.blocks_sent);
           });
    by_job(Type::Counter, "blocks_received",
           "Of these, blocks that are not zero on some rank, and wanted here.",
           [](const JobFigures& job) { return job.ops.blocks_received; });
    by_job(Type::Counter, "bytes_saved",
           "Bytes that blocks of zeros spared this rank to send, in reductions.",
           [](const JobFigures& job) { return job.ops.bytes_saved; });
  }

  /// Calls f(job, rank, kind, of_kind, completed) for all kinds of ops that have occurred.
  template <class F>
  void for_each_kind(F&& f) const {
    for (const JobFigures& job : figures_.jobs)
      for (std::size_t i = 0; i < job.ops.kinds.size(); ++i) {
        const OpTotals::OfKind& of = job.ops.kinds[i];
        std::uint64_t completed = 0;
        for (const std::uint64_t count : of.time.counts()) completed += count;
        if (completed + of.failed != 0)
          f(std::to_string(job.job), std::to_string(job.rank.value),
            std::string(name(wire::Collective(i))), of, completed);
      }
  }

  void of_paths() {
    by_path("window_streams", "Streams of the shard that may run, by congestion.",
            [](const JobFigures::Path& path) { return static_cast<double>(path.window); });
    by_path("round_trip_seconds", "Smoothed time of a round trip; 0: not measured.",
            [](const JobFigures::Path& path) { return seconds(path.round_trip); });
    by_path("retransmit_timeout_seconds", "Time after which a packet is sent again.",
            [](const JobFigures::Path& path) { return seconds(path.retransmit_timeout); });
  }

  const ProcessFigures& figures_;
  std::vector<prometheus::MetricFamily> all_;
};

}  // namespace

std::string to_prometheus(const ProcessFigures& figures) {
  return Text(figures).text();
}

MetricsServer::MetricsServer(const std::string& listen, Progress& progress) : progress_(progress) {
  const config::ListenPorts where = config::parse_listen_ports("metrics_listen", listen);
  const std::string ipv4 = config::ipv4_to_string(where.first.ipv4);
  for (unsigned port = where.first.port; !server_; ++port) try {
      server_ = std::make_unique<http::Server>(
          http::Server::Options{
              .ipv4 = ipv4, .port = static_cast<std::uint16_t>(port), .clients = 8},
          http::Server::Pages{
              {"/metrics", [this] {
                 return http::Response{std::string(metrics::kPrometheusType), text()};
               }}});
    } catch (const Error& error) {
      if (port >= where.last)
        throw Error(error.code(), "metrics_listen: " + std::string(error.what()));
    }
  in_children_.emplace(server_->listening_descriptor());
  progress.logger()->info("metrics at http://{}:{}/metrics", ipv4, server_->port());
}

MetricsServer::~MetricsServer() = default;

std::string MetricsServer::text() {
  const std::lock_guard lock(mutex_);
  const Time now = Progress::now();
  if (taken_at_ == kNever || now - taken_at_ >= kOldest) {
    latest_ = to_prometheus(progress_.figures());
    taken_at_ = now;
  }
  return latest_;
}

}  // namespace sluice
