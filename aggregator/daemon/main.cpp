// sluice-aggregator: the aggregator daemon. Exit status 0: ended by a signal; 1: could not serve,
// or lost packet buffers; 2: wrong settings.
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>

#include <spdlog/spdlog.h>

#include <sluice/error.hpp>

#include "aggregator/daemon/daemon.hpp"
#include "aggregator/daemon/start_checks.hpp"
#include "common/base/version.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/log.hpp"
#include "common/config/reload.hpp"
#include "common/log/fields.hpp"
#include "common/log/logger.hpp"
#include "common/log/printable.hpp"
#include "common/net/pool.hpp"

int main(int argc, char** argv) {
  using namespace sluice;
  // If the file of the log reaches its limit (ulimit -f), a line is lost, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  std::shared_ptr<spdlog::logger> log;  // set if its form or place is not that of standard error
  bool has_file = false;
  const auto refuse = [&](const std::exception& error) {
    if (log) log->error("{}", error.what());
    if (!log || has_file)  // where the user who started it looks
      std::fprintf(stderr, "sluice-aggregator: %s\n", printable(error.what()).c_str());
  };
  try {
    const auto outcome = config::parse_aggregator(argc, argv);
    if (outcome.action == config::ParseOutcome::Action::kCheck)
      aggregator::check_start(outcome.config);
    if (outcome.action != config::ParseOutcome::Action::kRun) {
      std::fputs(outcome.text.c_str(), stdout);
      return 0;
    }
    const auto logger = config::make_logger({.name = "sluice-aggregator",
                                             .level = outcome.config.log_level,
                                             .file = outcome.config.log_file,
                                             .format = outcome.config.log_format});
    has_file = !outcome.config.log_file.empty();
    if (has_file || outcome.config.log_format != LogFormat::kText) log = logger;
    spdlog::set_default_logger(logger);
    {
      const LogContext context({{"version", version()}, {"build", build_id()}});
      logger->info("version {}, build {}", version(), build_id());
    }
    for (const std::string& warning : outcome.warnings) logger->warn("{}", warning);
    const auto reload = [&](const auto& config, const auto& secrets) {
      return config::reload_aggregator(config, secrets, argc, argv);
    };
    aggregator::Daemon(outcome.config, outcome.secrets, reload, logger).run();
    return net::BufferPool::lost() == 0 ? 0 : 1;
  } catch (const Error& error) {
    refuse(error);
    return error.code() == ErrorCode::kInvalidArgument ? 2 : 1;
  } catch (const std::exception& error) {
    refuse(error);
    return 1;
  }
}
