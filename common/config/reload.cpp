#include "common/config/reload.hpp"

#include "common/config/aggregator_settings.hpp"

namespace sluice::config {
namespace {

std::string value_of(const AggregatorSetting& setting, const AggregatorConfig& config) {
  const std::string value = join(setting.value.show(config), " ");
  return value.empty() ? "none" : value;
}

void copy(const AggregatorSetting& setting, const AggregatorConfig& from, AggregatorConfig& to) {
  for (const std::string& text : setting.value.show(from))
    setting.value.assign(to, setting.name, text);
}

}  // namespace

ReloadOutcome reload_aggregator(const AggregatorConfig& running, const SecretStore& secrets,
                                int argc, const char* const* argv, const Environment& environment) {
  ParseOutcome read = parse_aggregator(argc, argv, environment);
  ReloadOutcome outcome;
  outcome.config = running;
  for (const AggregatorSetting& setting : aggregator_settings()) {
    const std::string before = value_of(setting, running);
    const std::string after = value_of(setting, read.config);
    if (before == after) continue;
    auto& changes = setting.reloadable ? outcome.applied : outcome.needs_restart;
    changes.push_back(setting.name + " = " + after + ", was " + before);
    if (setting.reloadable) copy(setting, read.config, outcome.config);
  }
  if (!(read.secrets == secrets))
    outcome.applied.push_back("secrets read again: " + read.secrets.describe());
  outcome.secrets = std::move(read.secrets);
  // What was read is sound by itself; what it makes with the settings that stay may not be.
  check_together(outcome.config, outcome.secrets,
                 [](const std::string&) { return std::string("after the reload"); });
  return outcome;
}

}  // namespace sluice::config
