#include "aggregator/daemon/daemon.hpp"

#include <array>
#include <climits>
#include <csignal>
#include <memory>
#include <string>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "aggregator/daemon/start_checks.hpp"
#include "aggregator/monitoring/job_log.hpp"
#include "common/base/limits.hpp"
#include "common/base/random_id.hpp"
#include "common/base/version.hpp"
#include "common/config/log.hpp"
#include "common/config/pci_device.hpp"
#include "common/log/fields.hpp"
#include "common/memory/closing.hpp"
#include "common/net/clock.hpp"
#include "common/net/peer_memory.hpp"

namespace sluice::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr auto kControlPeriod = 20ms;   // how often local workers are looked after
constexpr int kServedInPeriod = 32;     // how many times: many commands must not take a core
constexpr auto kPauseWorthSaying = 1s;  // of a lane
// How long until ranks that received no word of the end notice it themselves.
constexpr auto kRetirement = 500ms;
constexpr auto kSamplePeriod = 1s;  // of metrics and the status page

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
  eal_ = start_dpdk(memory_mib);
  pools_ = std::make_unique<LanePools>(config_, memory_mib, *logger_);
  network_ = std::make_unique<NetworkPorts>(config_, *pools_, logger_, peer_log_);
  if (!config_.vhost_dir.empty())
    local_workers_ = std::make_unique<LocalWorkers>(config_, peer_log_);
  warn_of_settings();
  lanes_ = std::make_unique<Lanes>(
      config_, [this](std::uint16_t lane) { return engine_config(lane); }, *pools_, logger_);
  captures_ = std::make_unique<Captures>(*lanes_, peer_log_);
  for (const auto& port : network_->ports()) lanes_->attach(*port);
  if (local_workers_) {
    local_workers_->serve(config_, *pools_, *lanes_);
    logger_->info("local workers at vhost:{}", config_.vhost_dir);
  }
  if (!config_.control_socket.empty()) open_control();
}

std::unique_ptr<net::Eal> Daemon::start_dpdk(std::uint32_t memory_mib) {
  net::EalOptions options;
  options.file_prefix = config_.file_prefix;
  options.hugepages = config_.hugepages;
  options.pci = config_.pci;
  options.memory_mib = memory_mib;
  options.telemetry = config_.telemetry;
  options.log_level = net::dpdk_level(config_.log_level);
  options.log = [log = peer_log_](LogLevel level, std::string_view text) {
    log->log(cause_of(level), to_spdlog(level), "dpdk: {}", text);
  };
  options.extra_args = eal_arguments();
  auto eal = std::make_unique<net::Eal>(options);
  if (config_.telemetry) monitor_->serve_telemetry();
  net::survive_loss_of_peer_memory();
  return eal;
}

void Daemon::warn_of_settings() const {
  if (!config_.faults.empty())
    logger_->warn("fault injection is on for all traffic: {}", config_.faults);
  if (!secrets_.empty()) logger_->info("jobs prove {}", secrets_.describe());
  if (secrets_.empty() && !network_->empty())
    logger_->warn("no secrets: whoever reaches a network port may join any job");
  if (config_.multicast_groups.count != 0 && !config_.authenticate_packets &&
      !config_.encrypt_packets)
    logger_->warn(
        "multicast-groups without authenticate-packets: every host that joins a job's group can "
        "read its results, and forge some");
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

EngineConfig Daemon::engine_config(std::uint16_t lane) const {
  EngineConfig engine;
  engine.shard = static_cast<std::uint16_t>(lane * config_.shards + config_.shard);
  engine.shards = static_cast<std::uint16_t>(config_.lanes * config_.shards);
  engine.lanes = config_.lanes;
  engine.streams = config_.streams;
  engine.history = config_.history;
  engine.groups = config_.multicast_groups;
  engine.payload_bytes = static_cast<std::uint16_t>(largest_payload(config_));
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
    return network_->source_ports(from, rank);
  };
  engine.place = [this, lane](std::uint16_t port_id) { return place_of(lane, port_id); };
  engine.reply_rate_limit = config_.reply_rate_limit;
  engine.build = build_id();
  engine.incarnation = random_id();
  engine.unique = random_id;
  return engine;
}

/// For the thread of any lane: the ports of the network do not change.
EngineConfig::Place Daemon::place_of(std::uint16_t lane, std::uint16_t port_id) const {
  return {network_->ipv4_of(port_id).value_or(net::kVhostAggregatorIpv4),
          static_cast<std::uint16_t>(config_.udp_port + lane)};
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
    return shown(captures_->begin(std::move(file), frames, seconds, bytes));
  };
  actions.stop_capture = [this] { return captures_->stop(); };
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
  while (look_after()) {
    if (phase_ == Phase::kDraining && lanes_->live_jobs() == 0) {
      logger_->info("drained: the last job has left");
      break;
    }
    tell_figures();
  }
  end();
  report_.tell_all(figures());
}

/// To the log and to those who watch, when it is due.
void Daemon::tell_figures() {
  const bool report_is_due = net::now() >= next_report_;
  const bool sample_is_due = is_watched() && net::now() >= next_sample_;
  if (!report_is_due && !sample_is_due) return;
  const Figures now = figures();
  if (report_is_due) report_.tell_progress(now), schedule_report();
  if (sample_is_due) monitor_->publish(now), next_sample_ = after(now.at, kSamplePeriod);
}

/// The work of one control period: signals, ports, local workers, the log. Returns whether no
/// signal to end has come.
bool Daemon::look_after() {
  const Signal signal = serve_until_signal();
  if (signal == Signal::kReload) reload();
  network_->look_after(net::now());
  feed_watchdog();
  if (local_workers_) local_workers_->look_after();
  if (control_) control_->poll(net::now());
  captures_->look_after();
  log_events();
  return signal != Signal::kEnd;
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
  service_manager_.feed(lanes_->turns(), net::now());
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
  lanes_->adjust([this](std::uint16_t lane) { return engine_config(lane); });
}

// ------------------------------------------------------------------------ operators' commands
std::string Daemon::kick(std::uint32_t job) {
  if (!lanes_->kick(job))
    throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no job {} here", job));
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
  if (!lanes_->limit_streams(job, static_cast<std::uint16_t>(streams)))
    throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no active job {} here", job));
  if (streams == 0) return fmt::format("job {} runs all its streams", job);
  return fmt::format("job {} runs {} streams of each lane at a time, until it ends here", job,
                     streams);
}

std::string Daemon::drain(bool on) {
  if (phase_ == Phase::kEnding) throw Error(ErrorCode::kInvalidArgument, "the daemon ends already");
  phase_ = on ? Phase::kDraining : Phase::kServing;
  lanes_->close(on);
  service_manager_.status(status());
  if (!on) return "new jobs are taken";
  return fmt::format("no new jobs are taken; the daemon ends when {} jobs have left",
                     lanes_->live_jobs());
}

/// Waits for jobs to leave for a while. Then the ranks of the others are sent to the next
/// aggregator.
void Daemon::end() {
  phase_ = Phase::kEnding;
  lanes_->close(true);
  service_manager_.stopping(status());
  if (config_.drain_timeout.count() != 0 && lanes_->live_jobs() != 0) {
    logger_->info("ending: waiting {} ms at most for {} jobs to leave",
                  config_.drain_timeout.count(), lanes_->live_jobs());
    look_after_until(after(net::now(), config_.drain_timeout),
                     [this] { return lanes_->live_jobs() == 0; });
  }
  if (lanes_->live_jobs() != 0) {
    logger_->info("ending: the ranks of {} jobs are told to go on at the next aggregator",
                  lanes_->live_jobs());
    lanes_->retire();
    look_after_until(after(net::now(), kRetirement), [this] { return lanes_->retired(); });
  } else {
    logger_->info("ending");
  }
  lanes_->end();
  log_events();
  peer_log_->flush();
}

/// Waits until `done`, or until a further signal to end.
template <class Done>
void Daemon::look_after_until(Time deadline, Done&& done) {
  while (net::now() < deadline && !done() && look_after()) {
  }
}

/// Logs events of jobs for operators. It is done on this thread, so that a log that blocks stops no
/// lane.
void Daemon::log_events() {
  bool any = false;
  for (std::uint16_t lane = 0; lane < lanes_->count(); ++lane) any |= log_events_of(lane);
  if (any && service_manager_.is_there()) service_manager_.status(status());
  peer_log_->tell_suppressed();
}

std::string Daemon::status() {
  return fmt::format("{}{} jobs", phase_ == Phase::kDraining ? "draining, " : "",
                     lanes_->live_jobs());
}

/// Returns whether there were any.
bool Daemon::log_events_of(std::uint16_t lane) {
  const Lane::Events events = lanes_->take_events(lane);
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
  now.draining = phase_ != Phase::kServing;
  now.max_jobs = config_.max_jobs;
  now.captured = captures_->latest();
  now.lanes = lanes_->figures();
  now.pools = pools_->figures();
  now.ports = network_->figures();
  if (local_workers_) {
    now.ports.push_back(local_workers_->figures());
    now.local = local_workers_->counters();
  }
  return now;
}

}  // namespace sluice::aggregator
