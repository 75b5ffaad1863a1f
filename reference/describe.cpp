// Prints, as JSON, all that users may set: the flags and settings of the programs, and the
// environment variables of the library; arguments.py adds the tools in Python. And all that they
// may watch: the metrics. Pages of docs/, the manual pages and the completions of shells are made
// of it (render.py): no second list exists.
#include <cstdio>
#include <string>
#include <string_view>

#include <boost/any.hpp>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include "aggregator/monitoring/metrics.hpp"
#include "bench/flags.hpp"
#include "bench/perf/perf_options.hpp"
#include "bench/pktgen/pktgen_options.hpp"
#include "bindings/mpi/mpi_settings.hpp"
#include "common/base/version.hpp"
#include "common/config/aggregator_settings.hpp"
#include "common/config/variable_names.hpp"
#include "worker/config/worker_settings.hpp"
#include "worker/loop/metrics_server.hpp"

namespace {

using namespace sluice;
using Json = nlohmann::ordered_json;

namespace po = boost::program_options;

/// "help,h": name and short name.
Json command_flag(const config::CommandFlag& flag) {
  const std::string_view names = flag.name;
  const std::size_t comma = names.find(',');
  Json json{{"name", names.substr(0, comma)}, {"argument", flag.argument}, {"help", flag.help}};
  if (comma != names.npos) json["short"] = names.substr(comma + 1);
  if (*flag.argument != '\0') json["variable"] = config::variable_of(flag.name);
  return json;
}

std::string argument_of(const config::AggregatorSetting& setting) {
  if (setting.value.allowed == "file") return "FILE";
  return setting.value.allowed == "directory" ? "DIRECTORY" : "VALUE";
}

Json setting(const config::AggregatorSetting& setting) {
  return {{"name", setting.name},
          {"argument", argument_of(setting)},
          {"help", setting.help},
          {"variable", config::variable_of(setting.name)},
          {"allowed", setting.value.allowed},
          {"words", setting.value.words},
          {"unit", setting.unit},
          {"default", config::join(setting.value.show({}), " ")},
          {"reloadable", setting.reloadable},
          {"is_switch", setting.value.is_switch},
          {"is_list", setting.value.is_list}};
}

Json daemon_program() {
  Json groups{{{"title", "Command"}, {"flags", Json::array()}}};
  for (const auto& flag : config::command_flags())
    groups.back()["flags"].push_back(command_flag(flag));
  for (const auto& row : config::aggregator_settings()) {
    if (groups.back()["title"] != row.group)
      groups.push_back({{"title", row.group}, {"flags", Json::array()}});
    groups.back()["flags"].push_back(setting(row));
  }
  return {{"groups", groups}};
}

Json flag(const po::option_description& option) {
  Json json{{"name", option.long_name()}, {"argument", ""}, {"help", option.description()}};
  const std::string name =
      option.canonical_display_name(po::command_line_style::allow_dash_for_short);
  if (name.size() == 2) json["short"] = name.substr(1);
  if (option.semantic()->max_tokens() == 0) return json;
  const std::string argument = option.semantic()->name();  // "ARG (=32M)"
  json["argument"] = argument.substr(0, argument.find(' '));
  boost::any value;
  if (option.semantic()->apply_default(value))
    json["default"] = boost::any_cast<std::string>(value);
  return json;
}

Json program(const bench::Help& help) {
  Json groups = Json::array();
  for (const bench::FlagGroup& group : help.flags) {
    groups.push_back({{"title", group.title()}, {"flags", Json::array()}});
    for (const auto& option : group.flags().options())
      groups.back()["flags"].push_back(flag(*option));
  }
  return {{"usage", help.usage}, {"about", help.about}, {"groups", groups}, {"notes", help.notes}};
}

Json library_variables() {
  Json rows = Json::array();
  for (const VariableDescription& variable : described_variables())
    rows.push_back({{"name", variable.name},
                    {"option", variable.option},
                    {"allowed", variable.allowed},
                    {"unit", variable.unit},
                    {"default", variable.default_value},
                    {"help", variable.help}});
  return rows;
}

Json mpi_variables() {
  Json rows = Json::array();
  for (const sluice_mpi::Variable& variable : sluice_mpi::variables())
    rows.push_back({{"name", variable.name},
                    {"allowed", variable.allowed},
                    {"default", variable.show({})},
                    {"help", variable.help}});
  return rows;
}

/// What a daemon serves that has one of everything.
std::string metrics_of_aggregator() {
  using namespace aggregator;
  Figures figures;
  figures.lanes.emplace_back().jobs.emplace_back();
  figures.pools.emplace_back();
  figures.ports.emplace_back().device = "vhost";
  figures.local.emplace();
  return to_prometheus(figures);
}

/// The same of a rank, which has a failed op.
std::string metrics_of_worker() {
  ProcessFigures figures;
  JobFigures& job = figures.jobs.emplace_back();
  job.paths.emplace_back();
  job.ops.kinds.front().failed = 1;
  return to_prometheus(figures);
}

}  // namespace

int main() {
  const Json all{
      {"version", version()},
      {"build", build_id()},
      {"programs",
       {{"sluice-aggregator", daemon_program()},
        {"sluice-perf", program(perf::help())},
        {"sluice-pktgen", program(pktgen::help())}}},
      {"variables", {{"library", library_variables()}, {"mpi", mpi_variables()}}},
      {"metrics", {{"aggregator", metrics_of_aggregator()}, {"worker", metrics_of_worker()}}},
      {"known_variables", config::known_variables()}};
  std::puts(all.dump(1).c_str());
}
