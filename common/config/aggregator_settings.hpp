// The one table of the daemon's settings, and what is printed from it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/aggregator_config.hpp"
#include "common/config/setting.hpp"

namespace sluice::config {

using AggregatorSetting = Setting<AggregatorConfig>;

/// In the order of the help text. Names are those of flags and of keys in the file.
const std::vector<AggregatorSetting>& aggregator_settings();

/// "[1..32 ports, default 31]", "[1..1024 jobs, default 16, reloadable]".
std::string range_and_default(const AggregatorSetting& setting);

/// A flag that says what to do, and is no setting.
struct CommandFlag {
  const char* name;      ///< "help,h": the short one follows the comma
  const char* argument;  ///< "FILE", or empty
  const char* help;
};

/// In the order of the help text.
const std::vector<CommandFlag>& command_flags();

/// The environment variable that gives a setting, or --config: "SLUICE_AGGREGATOR_UDP_PORT".
std::string variable_of(std::string_view name);

/// Where the value of a setting came from: "flag --mtu", "FILE:12", "variable NAME", "default".
using OriginOf = std::function<std::string(const std::string& name)>;

/// Whether local workers, which reach lane l at the default port plus l, find no other lane there.
bool udp_ports_fit(const AggregatorConfig& config);

/// Throws kInvalidArgument when settings contradict each other or the file system.
void check_together(const AggregatorConfig& config, const SecretStore& secrets,
                    const OriginOf& origin_of);

}  // namespace sluice::config
