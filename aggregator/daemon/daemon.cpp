#include "aggregator/daemon/daemon.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <memory>
#include <span>
#include <string>

#include <poll.h>
#include <spdlog/fmt/ranges.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "aggregator/daemon/start_checks.hpp"
#include "aggregator/monitoring/job_log.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_memory.hpp"
#include "common/base/random_id.hpp"
#include "common/base/version.hpp"
#include "common/config/log.hpp"
#include "common/config/pci_device.hpp"
#include "common/log/fields.hpp"
#include "common/memory/closing.hpp"
#include "common/net/clock.hpp"
#include "common/net/own_directory.hpp"
#include "common/net/peer_memory.hpp"

namespace sluice::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr auto kControlPeriod = 20ms;   // how often local workers are looked after
constexpr int kServedInPeriod = 32;     // how many times: many commands must not take a core
constexpr auto kPauseWorthSaying = 1s;  // of a lane
constexpr auto kRssPeriod = 2s;         // how often a device is asked whether it spreads as before
// How long until ranks that received no word of the end notice it themselves.
constexpr auto kRetirement = 500ms;
constexpr auto kLongestCapture = 3600s;
constexpr auto kSamplePeriod = 1s;  // of metrics and the status page
constexpr auto kHeaderRoom = net::kIpv4Bytes + net::kUdpBytes;

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

timespec to_timespec(Duration d) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(d);
  return {seconds.count(), (d - seconds).count()};
}

std::int64_t milliseconds(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

/// The UDP ports of network addresses and of vhost addresses, whose port is not configured. Two
/// lanes have different ones.
std::vector<std::uint16_t> udp_ports_of(std::uint16_t lane,
                                        const config::AggregatorConfig& config) {
  std::vector<std::uint16_t> ports{static_cast<std::uint16_t>(config.udp_port + lane)};
  if (!config.vhost_dir.empty())
    ports.push_back(static_cast<std::uint16_t>(config::kDefaultUdpPort + lane));
  return ports;
}

/// The rate limit for DPDK's lines: its complaints have their own, so that many harmless lines do
/// not hide them.
std::string_view cause_of(LogLevel level) {
  if (level == LogLevel::kError) return "DPDK's errors";
  return level == LogLevel::kWarn ? "DPDK's warnings" : "DPDK";
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

std::uint16_t largest_mtu(const config::AggregatorConfig& config) {
  const std::uint16_t local = config.vhost_dir.empty() ? 0 : config.mtu;
  const std::uint16_t network = config.ports.empty() ? 0 : config.port_mtu;
  return std::max(local, network);
}

}  // namespace

Daemon::Daemon(const config::AggregatorConfig& config, const config::SecretStore& secrets,
               Reload reload, std::shared_ptr<spdlog::logger> logger)
    : config_(config),
      secrets_(secrets),
      reload_(std::move(reload)),
      logger_(std::move(logger)),
      peer_log_(std::make_shared<LimitedLog>(logger_, net::now)),
      service_manager_(config::process_environment, logger_),
      report_(logger_, net::now()) {
  check_start(config_);
  memory::close_on_own_threads();
  const sigset_t signals = awaited_signals();  // only run() takes them, on this thread
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signals_ = memory::Descriptor(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_) throw Error(ErrorCode::kUnavailable, "no descriptor for signals (ulimit -n)");

  const Identity identity{config_.shard, config_.shards, net::now(), host_name()};
  monitor_ = std::make_unique<Monitor>(identity, logger_);  // before other threads log
  if (!config_.metrics_listen.empty()) try {
      monitor_->serve_http(config::parse_listen_address("metrics-listen", config_.metrics_listen));
    } catch (const Error& error) {
      throw Error(error.code(), std::string("metrics-listen: ") + error.what());
    }

  const std::uint32_t memory_mib = config::packet_memory_mib(config_);
  net::EalOptions eal;
  eal.file_prefix = config_.file_prefix;
  eal.hugepages = config_.hugepages;
  eal.pci = config_.pci;
  eal.memory_mib = memory_mib;
  eal.telemetry = config_.telemetry;
  eal.log_level = net::dpdk_level(config_.log_level);
  eal.log = [log = peer_log_](LogLevel level, std::string_view text) {
    log->log(cause_of(level), to_spdlog(level), "dpdk: {}", text);
  };
  eal.extra_args = eal_arguments();
  eal_ = std::make_unique<net::Eal>(eal);
  if (config_.telemetry) monitor_->serve_telemetry();
  net::survive_loss_of_peer_memory();

  make_pools(memory_mib);
  open_ports();
  if (!config_.vhost_dir.empty()) claim_vhost_directory();
  if (!config_.faults.empty())
    logger_->warn("fault injection is on for all traffic: {}", config_.faults);
  if (!secrets_.empty()) logger_->info("jobs prove {}", secrets_.describe());
  if (secrets_.empty() && !ports_.empty())
    logger_->warn("no secrets: whoever reaches a network port may join any job");
  if (config_.multicast_groups.count != 0 && !config_.authenticate_packets &&
      !config_.encrypt_packets)
    logger_->warn(
        "multicast-groups without authenticate-packets: every host that joins a job's group can "
        "read its results, and forge some");
  start_lanes();
  if (!config_.vhost_dir.empty()) open_vhost_directory();
  if (!config_.control_socket.empty()) open_control();
}

/// The arguments for DPDK. Without a list of devices it would take every device that it can,
/// including those of other daemons and of workers.
std::vector<std::string> Daemon::eal_arguments() const {
  std::vector<std::string> arguments;
  for (const std::string& port : config_.ports)
    if (config::is_pci_device(port)) arguments.push_back("--allow=" + port);
  arguments.insert(arguments.end(), config_.eal_args.begin(), config_.eal_args.end());
  return arguments;
}

/// Each lane has its own.
void Daemon::make_pools(std::uint32_t memory_mib) {
  const std::size_t payload_bytes = largest_mtu(config_) - kHeaderRoom;
  const std::size_t budget = std::size_t{memory_mib - config::dpdk_memory_mib(config_)} << 20;
  const std::size_t buffers = budget / packet_buffer_bytes(largest_mtu(config_)) / config_.lanes;
  const std::size_t ports =
      config_.ports.size() + (config_.vhost_dir.empty() ? 0 : config_.vhost_max_ports);
  for (std::uint16_t lane = 0; lane < config_.lanes; ++lane) {
    const std::string number = std::to_string(lane);
    LanePools& pools = pools_.emplace_back();
    pools.headers = std::make_unique<net::BufferPool>(
        "headers-" + number,
        std::max(limits::kMinHeaderBuffers, ports * limits::kHeaderBuffersPerPort), 0);
    pools.payloads =
        std::make_unique<net::BufferPool>("payloads-" + number, buffers, payload_bytes);
  }
  logger_->debug("packet memory: {} MiB, {} payload buffers of {} B for each of {} lanes",
                 memory_mib, buffers, payload_bytes, config_.lanes);
}

std::vector<net::BufferPool*> Daemon::payload_pools() const {
  std::vector<net::BufferPool*> pools;
  for (const LanePools& each : pools_) pools.push_back(each.payloads.get());
  return pools;
}

void Daemon::start_lanes() {
  if (config_.lanes > config_.cores.usable())
    logger_->warn("{} lanes share {}: each is meant for a core of its own", config_.lanes,
                  config_.cores.describe());
  if (config_.lanes > 1) hand_over_ = std::make_unique<net::HandOver>(config_.lanes);
  std::vector<LaneOptions> options(config_.lanes);
  for (std::uint16_t lane = 0; lane < config_.lanes; ++lane) {
    options[lane] = {.number = lane,
                     .hand_over = hand_over_.get(),
                     .udp_ports = udp_ports_of(lane, config_),
                     .idle = config_.idle,
                     .cpu = config_.cpu.empty() ? -1 : config_.cpu[lane],
                     .faults = net::parse_faults(config_.faults)};
    if (!hand_over_) continue;
    for (const std::uint16_t port : options[lane].udp_ports) hand_over_->listens(lane, port);
  }
  for (std::uint16_t lane = 0; lane < config_.lanes; ++lane) {
    net::BufferPool& payloads = *pools_[lane].payloads;
    EngineConfig engine = engine_config(lane);
    engine.buffers_max = payloads.size() - config::ring_buffers(config_);
    lanes_.push_back(std::make_unique<Lane>(options[lane], std::move(engine), payloads,
                                            *pools_[lane].headers, logger_));
    for (const auto& port : ports_) lanes_.back()->attach(port->view(lane));
  }
}

EngineConfig Daemon::engine_config(std::uint16_t lane) const {
  EngineConfig engine;
  engine.shard = static_cast<std::uint16_t>(lane * config_.shards + config_.shard);
  engine.shards = static_cast<std::uint16_t>(config_.lanes * config_.shards);
  engine.lanes = config_.lanes;
  engine.streams = config_.streams;
  engine.history = config_.history;
  engine.groups = config_.multicast_groups;
  engine.payload_bytes = static_cast<std::uint16_t>(largest_mtu(config_) - kHeaderRoom);
  engine.jobs_max = config_.max_jobs;
  engine.job_memory_bytes_max = (std::size_t{config_.job_memory_mib} << 20) / config_.lanes;
  engine.liveness_timeout = config_.liveness_timeout;
  engine.formation_timeout = config_.formation_timeout;
  engine.straggler_warning = config_.straggler_warning;
  engine.integrity = config::computes_integrity(config_);
  engine.secret = [secrets = secrets_](std::uint32_t job) { return secrets.find(job); };
  engine.authenticate_packets = config_.authenticate_packets;
  engine.encrypt_packets = config_.encrypt_packets;
  engine.challenge_key = random_key();
  engine.source_ports = [this](const Endpoint& from, Rank rank) {
    return source_ports(from, rank);
  };
  engine.place = [this, lane](std::uint16_t port_id) { return place_of(lane, port_id); };
  engine.reply_rate_limit = config_.reply_rate_limit;
  engine.build = build_id();
  engine.incarnation = random_id();
  engine.unique = random_id;
  return engine;
}

Daemon::~Daemon() {
  monitor_.reset();
  for (const auto& lane : lanes_) lane->capture(nullptr);
  lanes_.clear();
  vhost_.reset();
  ports_.clear();
}

void Daemon::open_ports() {
  for (std::size_t i = 0; i < config_.ports.size(); ++i) {
    for (std::uint16_t lane = 0; lane < config_.lanes; ++lane)
      claims_.push_back(config::Claim::on_udp_port(
          config_.addresses[i].ipv4, static_cast<std::uint16_t>(config_.udp_port + lane)));
    net::PortOptions options;
    options.device = config_.ports[i];
    options.mtu = config_.port_mtu;
    options.vlan = config_.port_vlan;
    options.ipv4 = config_.addresses[i].ipv4;
    options.prefix = config_.addresses[i].prefix;
    options.gateway = config_.addresses[i].gateway;
    options.udp_checksum = config_.udp_checksum;
    options.queues = config_.lanes;
    options.descriptors = limits::kNetworkPortDescriptors;
    ports_.push_back(std::make_unique<net::Port>(options, payload_pools()));
    logger_->info("port {} at {}, UDP port {}{}", options.device,
                  config::to_string(config_.addresses[i]), config_.udp_port,
                  options.vlan == net::kNoVlan ? "" : fmt::format(", VLAN {}", options.vlan));
    if (config::is_pci_device(options.device))
      logger_->info("port {}: {}", options.device, ports_.back()->abilities());
    if (config_.lanes > 1) steer(*ports_.back());
  }
}

void Daemon::steer(net::Port& port) {
  const net::Port::Steered steered = port.steer(config_.udp_port);
  const char* const way = steered.by_rules          ? "rte_flow"
                          : steered.by_source_ports ? "source ports, by RSS"
                                                    : "software hand-over";
  logger_->info("port {}: steering: {}{}", port.device(), way,
                steered.refusal.empty() ? "" : " (" + steered.refusal + ")");
  if (steered.by_source_ports)
    steered_ports_.emplace_back(new SteeredPort{port, steered.by_source_ports});
}

/// For the thread of any lane.
SourcePorts Daemon::source_ports(const Endpoint& from, Rank rank) const {
  for (const auto& steered : steered_ports_)
    if (steered->port.id() == from.port_id && steered->holds.load(std::memory_order_relaxed))
      return steered->chooser->choose(from.ipv4, rank);
  return {};
}

/// For the thread of any lane: the ports of the network do not change.
EngineConfig::Place Daemon::place_of(std::uint16_t lane, std::uint16_t port_id) const {
  EngineConfig::Place place{net::kVhostAggregatorIpv4,
                            static_cast<std::uint16_t>(config_.udp_port + lane)};
  for (std::size_t i = 0; i < ports_.size(); ++i)
    if (ports_[i]->id() == port_id) place.ipv4 = config_.addresses[i].ipv4;
  return place;
}

/// If the device spreads differently now, ranks that join from now on get no source ports.
void Daemon::look_at_rss() {
  if (net::now() < next_rss_look_) return;
  next_rss_look_ = after(net::now(), kRssPeriod);
  for (const auto& steered : steered_ports_) {
    if (!steered->holds) continue;
    const std::string change = steered->port.rss_change();
    if (change.empty()) continue;
    steered->holds = false;
    logger_->warn("port {}: steering: software hand-over from now on ({})", steered->port.device(),
                  change);
  }
}

/// Ensures that no other process serves it.
void Daemon::claim_vhost_directory() {
  net::make_own_directory(net::kVhostDirectory, config_.vhost_dir);
  claims_.push_back(config::Claim::on_directory(config_.vhost_dir));
  served_ = net::tell_lanes(config_.vhost_dir, config_.lanes);
}

void Daemon::open_vhost_directory() {
  net::VhostOptions options;
  options.max_ports = config_.vhost_max_ports;
  for (std::uint16_t lane = 0; lane < config_.lanes; ++lane)
    options.polling_threads.push_back(Lane::thread_name(lane));
  options.port.queues = config_.lanes;
  options.port.mtu = config_.mtu;
  options.port.ipv4 = net::kVhostAggregatorIpv4;
  options.port.prefix = net::kVhostPrefix;
  net::VhostEvents events;
  events.attached = [this](net::Port& port) {
    peer_log_->log("local workers", spdlog::level::debug, "local worker at {}", port.device());
    for (std::uint16_t lane = 0; lane < config_.lanes; ++lane)
      lanes_[lane]->attach(port.view(lane));
  };
  events.detaching = [this](std::uint16_t port_id) {
    const auto left = std::make_shared<std::atomic<std::size_t>>(lanes_.size());
    for (const auto& lane : lanes_)
      lane->detach(port_id, [this, port_id, left] {
        if (left->fetch_sub(1) == 1) vhost_->released(port_id);  // the last one
      });
  };
  events.detached = [this](std::uint16_t port_id) {
    peer_log_->log("closed ports", spdlog::level::debug, "port {} closed", port_id);
  };
  events.refused = [this](const std::string& path, const std::string& reason) {
    peer_log_->log("refused local workers", spdlog::level::warn, "local worker at {} refused: {}",
                   path, reason);
  };
  vhost_ = std::make_unique<net::VhostDirectory>(config_.vhost_dir, options, payload_pools(),
                                                 std::move(events));
  logger_->info("local workers at vhost:{}", config_.vhost_dir);
}

void Daemon::open_control() {
  const bool for_group = config_.control_access == config::ControlAccess::kGroup;
  // The operator sees it at once in the log.
  const auto shown = [this](std::string done) {
    monitor_->publish(figures());
    return done;
  };
  ControlActions actions;
  actions.status = [this] { return monitor_->status_json(); };
  actions.kick = [=, this](std::uint32_t job) { return shown(kick(job)); };
  actions.limit_jobs = [=, this](std::uint64_t jobs) { return shown(limit_jobs(jobs)); };
  actions.limit_streams = [=, this](std::uint32_t job, std::uint64_t streams) {
    return shown(limit_streams(job, streams));
  };
  actions.drain = [=, this](bool on) { return shown(drain(on)); };
  actions.capture = [=, this](memory::Descriptor file, std::uint64_t frames, std::uint32_t seconds,
                              std::uint32_t bytes) {
    return shown(capture(std::move(file), frames, seconds, bytes));
  };
  actions.stop_capture = [this] { return stop_capture(); };
  control_ =
      std::make_unique<Control>(config_.control_socket, for_group, std::move(actions), peer_log_);
  logger_->info("commands at {}, for {}", config_.control_socket,
                for_group ? "this user, root and the group" : "this user and root");
}

void Daemon::run() {
  peer_log_->limit(config_.log_rate_limit);  // no peer was served before
  if (is_watched()) monitor_->publish(figures());
  logger_->info("lanes: {}, {}", config_.lanes, config_.why_lanes);
  logger_->info("ready");
  service_manager_.ready(status());
  schedule_report();
  while (serving_) {
    look_after();
    const bool report_is_due = net::now() >= next_report_;
    if (draining_ && live_jobs() == 0) {
      logger_->info("drained: the last job has left");
      serving_ = false;
    }
    const bool sample_is_due = is_watched() && net::now() >= next_sample_;
    if (!report_is_due && !sample_is_due) continue;
    const Figures now = figures();
    if (report_is_due) report_.tell_progress(now), schedule_report();
    if (sample_is_due) monitor_->publish(now), next_sample_ = after(now.at, kSamplePeriod);
  }
  end();
  report_.tell_all(figures());
}

/// NICs begin to serve before their links are up, which may take seconds.
void Daemon::look_at_links() {
  links_up_.resize(ports_.size());
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const net::Port& port = *ports_[i];
    if (!config::is_pci_device(port.device())) continue;
    const bool up = port.link_up();
    if (links_up_[i] == up) continue;
    links_up_[i] = up;
    const std::uint32_t mbit = up ? port.link_mbit() : 0;
    peer_log_->log("links", up ? spdlog::level::info : spdlog::level::warn,
                   "port {}: the link is {}{}", port.device(), up ? "up" : "down",
                   mbit ? fmt::format(", {} Mbit/s", mbit) : "");
  }
}

/// The work of one control period: signals, local workers, the log.
void Daemon::look_after() {
  switch (serve_until_signal()) {
    case Signal::kEnd:
      serving_ = false;
      break;
    case Signal::kReload:
      reload();
      break;
    case Signal::kNone:
      break;
  }
  look_at_links();
  look_at_rss();
  feed_watchdog();
  if (vhost_) vhost_->poll();
  if (control_) control_->poll(net::now());
  look_at_capture();
  log_events();
}

/// Serves for one period.
Daemon::Signal Daemon::serve_until_signal() {
  const Time end = after(net::now(), kControlPeriod);
  int served = 0;
  for (;;) {
    const timespec at_most = to_timespec(std::max(end - net::now(), Duration::zero()));
    const bool commands = control_ && served < kServedInPeriod;
    std::array<pollfd, 2> waiting{
        {{signals_.get(), POLLIN, 0}, {commands ? control_->descriptor() : -1, POLLIN, 0}}};
    if (ppoll(waiting.data(), waiting.size(), &at_most, nullptr) <= 0) return Signal::kNone;
    if (signalfd_siginfo signal; read(signals_.get(), &signal, sizeof signal) == sizeof signal)
      return signal.ssi_signo == SIGHUP ? Signal::kReload : Signal::kEnd;
    if (waiting[1].revents != 0) control_->poll(net::now());
    ++served;
  }
}

/// The watchdog is not fed if a lane makes no turn, or if this thread does not run.
void Daemon::feed_watchdog() {
  std::array<std::uint64_t, limits::kMaxLanes> turns{};
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) turns[lane] = lanes_[lane]->turns();
  service_manager_.feed(std::span(turns).first(lanes_.size()), net::now());
}

/// Takes the settings that may change while jobs live. Bad settings change nothing.
void Daemon::reload() {
  service_manager_.reloading();
  try {
    if (config::reopen_log(*logger_)) logger_->info("reload: the log file was opened again");
  } catch (const Error& error) {
    logger_->error("reload: the log goes on in the file that is open: {}", error.what());
  }
  try {
    config::ReloadOutcome read = reload_(config_, secrets_);
    config_ = std::move(read.config);
    secrets_ = std::move(read.secrets);
    for (const std::string& change : read.applied) logger_->info("reload: {}", change);
    for (const std::string& change : read.needs_restart)
      logger_->warn("reload: needs a restart: {}", change);
    if (read.applied.empty() && read.needs_restart.empty()) logger_->info("reload: no change");
  } catch (const Error& error) {
    logger_->error("reload: nothing was changed: {}", error.what());
    service_manager_.ready(status());
    return;
  }
  config::set_level(*logger_, config_.log_level);
  peer_log_->limit(config_.log_rate_limit);
  schedule_report();
  adjust_lanes();
  service_manager_.ready(status());
}

void Daemon::adjust_lanes() {
  for (std::uint16_t lane = 0; lane < config_.lanes; ++lane)
    lanes_[lane]->adjust(engine_config(lane));
}

// ------------------------------------------------------------------------ operators' commands
/// Whether some lane has found what it was asked for.
bool Daemon::ask_lanes(const std::function<std::optional<bool>(Lane&)>& question) {
  bool found = false;
  std::vector<std::size_t> silent;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::optional<bool> answer = question(*lanes_[i]);
    if (!answer) silent.push_back(i);
    found |= answer.value_or(false);
  }
  if (!silent.empty())
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("lane {} did not answer; it does so when it goes on", fmt::join(silent, ", ")));
  return found;
}

std::string Daemon::kick(std::uint32_t job) {
  const bool found = ask_lanes([job](Lane& lane) { return lane.kick(job); });
  if (!found) throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no job {} here", job));
  return fmt::format("job {} was ended", job);
}

std::string Daemon::limit_jobs(std::uint64_t jobs) {
  if (jobs < 1 || jobs > limits::kMaxJobs)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("max-jobs = {}: 1..{} expected", jobs, limits::kMaxJobs));
  config_.max_jobs = static_cast<std::uint16_t>(jobs);
  adjust_lanes();
  return fmt::format("max-jobs = {}, until settings are read again", jobs);
}

std::string Daemon::limit_streams(std::uint32_t job, std::uint64_t streams) {
  if (streams > limits::kMaxStreams)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("streams = {}: 0..{} expected", streams, limits::kMaxStreams));
  const bool found = ask_lanes(
      [&](Lane& lane) { return lane.limit_streams(job, static_cast<std::uint16_t>(streams)); });
  if (!found)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no active job {} here", job));
  if (streams == 0) return fmt::format("job {} runs all its streams", job);
  return fmt::format("job {} runs {} streams of each lane at a time, until it ends here", job,
                     streams);
}

std::string Daemon::drain(bool on) {
  if (ending_) throw Error(ErrorCode::kInvalidArgument, "the daemon ends already");
  draining_ = on;
  for (const auto& lane : lanes_) lane->close(on);
  service_manager_.status(status());
  if (!on) return "new jobs are taken";
  return fmt::format("no new jobs are taken; the daemon ends when {} jobs have left", live_jobs());
}

std::string Daemon::capture(memory::Descriptor file, std::uint64_t frames, std::uint32_t seconds,
                            std::uint32_t frame_bytes) {
  if (seconds < 1 || seconds > kLongestCapture / 1s)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("seconds = {}: 1..{} expected", seconds, kLongestCapture / 1s));
  if (capture_) throw Error(ErrorCode::kInvalidArgument, "another capture is under way");
  capture_ = std::make_shared<net::Capture>(
      file.release(), net::CaptureOptions{.frames_max = frames,
                                          .longest = std::chrono::seconds(seconds),
                                          .frame_bytes = frame_bytes});
  captured_.emplace();
  for (const auto& lane : lanes_) lane->capture(capture_);
  return fmt::format("frames are captured for {} s at most", seconds);
}

std::string Daemon::stop_capture() {
  if (!capture_) throw Error(ErrorCode::kInvalidArgument, "nothing is captured");
  capture_->stop();
  return "the capture ends";
}

/// When a capture has ended, lanes release it before it is closed.
void Daemon::look_at_capture() {
  if (!capture_) return;
  captured_ = capture_->counters();
  if (!std::exchange(captured_->done, false)) return;
  if (!std::exchange(lanes_leave_capture_, true))
    for (const auto& lane : lanes_) lane->capture(nullptr);
  if (capture_.use_count() > 1) return;
  capture_->finish();
  if (!capture_->is_finished()) return;
  captured_ = capture_->counters();
  capture_.reset();
  lanes_leave_capture_ = false;
  if (!captured_->error.empty())
    peer_log_->log("captures", spdlog::level::err, "the capture has ended: {}", captured_->error);
  peer_log_->log("captures", spdlog::level::info, "{} frames were captured, {} more were missed",
                 captured_->written, captured_->missed);
}

/// Waits for jobs to leave for a while. Then the ranks of the others are sent to the next
/// aggregator.
void Daemon::end() {
  ending_ = true;
  for (const auto& lane : lanes_) lane->close(true);
  service_manager_.stopping(status());
  if (config_.drain_timeout.count() != 0 && live_jobs() != 0) {
    logger_->info("ending: waiting {} ms at most for {} jobs to leave",
                  config_.drain_timeout.count(), live_jobs());
    look_after_until(after(net::now(), config_.drain_timeout), [this] { return live_jobs() == 0; });
  }
  if (live_jobs() != 0) {
    logger_->info("ending: the ranks of {} jobs are told to go on at the next aggregator",
                  live_jobs());
    for (const auto& lane : lanes_) lane->retire();
    look_after_until(after(net::now(), kRetirement), [this] {
      return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->retired(); });
    });
  } else {
    logger_->info("ending");
  }
  for (const auto& lane : lanes_) lane->end();
  log_events();
  peer_log_->flush();
}

/// Waits until `done`, or until a further signal to end.
template <class Done>
void Daemon::look_after_until(Time deadline, Done&& done) {
  serving_ = true;
  while (serving_ && net::now() < deadline && !done()) look_after();
}

/// The number of jobs; a job lives at all lanes, or is about to.
std::size_t Daemon::live_jobs() {
  std::size_t most = 0;
  for (const auto& lane : lanes_) most = std::max(most, lane->live_jobs());
  return most;
}

/// Logs events of jobs for operators. It is done on this thread, so that a log that blocks stops no
/// lane.
void Daemon::log_events() {
  bool any = false;
  for (std::uint16_t lane = 0; lane < config_.lanes; ++lane) any |= log_events_of(lane);
  if (any && service_manager_.is_there()) service_manager_.status(status());
  peer_log_->tell_suppressed();
}

std::string Daemon::status() {
  return fmt::format("{}{} jobs", draining_ ? "draining, " : "", live_jobs());
}

/// Returns whether there were any.
bool Daemon::log_events_of(std::uint16_t lane) {
  const Lane::Events events = lanes_[lane]->take_events();
  for (const JobEvent& event : events.of_jobs.list) log_job_event(*peer_log_, event, lane);
  const std::string where = lane == 0 ? "" : fmt::format(" (lane {})", lane);
  const LogContext context(LogFields{{"lane", std::uint64_t{lane}}});
  if (events.of_jobs.lost != 0)
    peer_log_->log("lost events", spdlog::level::warn, "{} more events of jobs were not logged{}",
                   events.of_jobs.lost, where);
  if (events.longest_pause >= kPauseWorthSaying)
    peer_log_->log("pauses", spdlog::level::warn,
                   "a lane was not run for {} ms: its core was taken, or the process stopped{}",
                   milliseconds(events.longest_pause), where);
  return !events.of_jobs.list.empty();
}

void Daemon::schedule_report() {
  next_report_ =
      config_.stats_interval.count() == 0 ? kNever : after(net::now(), config_.stats_interval);
}

Figures Daemon::figures() {
  Figures now;
  now.at = net::now();
  now.draining = draining_;
  now.max_jobs = config_.max_jobs;
  now.captured = captured_;
  for (const auto& lane : lanes_) now.lanes.push_back(lane->snapshot());
  for (const LanePools& pools : pools_)
    now.pools.push_back({pools.payloads->size(), pools.payloads->available()});
  for (const auto& port : ports_)
    now.ports.push_back({port->device(), port->statistics(), port->link_up()});
  if (vhost_) {
    now.ports.push_back({"vhost", vhost_->statistics()});
    now.local = vhost_->counters();
  }
  return now;
}

}  // namespace sluice::aggregator
