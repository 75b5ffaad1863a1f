// sluice-aggregator: the aggregator daemon. Exit status 0: ended by a signal; 1: could not serve,
// or lost packet buffers; 2: wrong settings.
#include <cstdio>
#include <exception>

#include <spdlog/spdlog.h>

#include <sluice/error.hpp>

#include "aggregator/daemon.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/log.hpp"
#include "common/config/reload.hpp"
#include "common/log/logger.hpp"
#include "common/net/pool.hpp"

int main(int argc, char** argv) {
  using namespace sluice;
  try {
    const auto outcome = config::parse_aggregator(argc, argv);
    if (outcome.action != config::ParseOutcome::Action::kRun) {
      std::fputs(outcome.text.c_str(), stdout);
      return 0;
    }
    const auto logger = config::make_logger({.name = "sluice-aggregator",
                                             .level = outcome.config.log_level,
                                             .file = outcome.config.log_file});
    spdlog::set_default_logger(logger);
    for (const std::string& name : config::unknown_variables())
      logger->warn("the environment has {}", name);
    const auto reload = [&](const auto& config, const auto& secrets) {
      return config::reload_aggregator(config, secrets, argc, argv);
    };
    aggregator::Daemon(outcome.config, outcome.secrets, reload, logger).run();
    return net::BufferPool::lost() == 0 ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "sluice-aggregator: %s\n", error.what());
    return error.code() == ErrorCode::kInvalidArgument ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice-aggregator: %s\n", error.what());
    return 1;
  }
}
