#include "common/config/variable_names.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "common/config/aggregator_settings.hpp"
#include "common/config/nearest_name.hpp"
#include "common/config/value.hpp"

namespace sluice::config {
namespace {

constexpr std::string_view kPrefix = "SLUICE_";

// Those of the daemon's settings are made of their table. The others are here once more, as the
// daemon does not link the library: the test `reference` compares this list with the tables of the
// library and of MPI, and with what the sources read.
constexpr std::array kOthers{"SLUICE_ADDRESS",
                             "SLUICE_AGGREGATORS",
                             "SLUICE_AGGREGATOR_SECRET",
                             "SLUICE_AGGREGATOR_TIMEOUT_MS",
                             "SLUICE_AUTHENTICATE_PACKETS",
                             "SLUICE_BLOCK_ELEMENTS",
                             "SLUICE_CONNECT_TIMEOUT_MS",
                             "SLUICE_EAL_ARGS",
                             "SLUICE_ENCRYPT_PACKETS",
                             "SLUICE_FAULTS",
                             "SLUICE_HISTORY",
                             "SLUICE_HOST",
                             "SLUICE_HOST_LEVEL",
                             "SLUICE_HOST_PROCESS_VM",
                             "SLUICE_HUGEPAGES",
                             "SLUICE_IDLE",
                             "SLUICE_INTEGRITY",
                             "SLUICE_JOB",
                             "SLUICE_JOIN_TIMEOUT_MS",
                             "SLUICE_LIBRARY",
                             "SLUICE_LOCAL_WORLD_SIZE",
                             "SLUICE_LOG",
                             "SLUICE_MEMORY_MIB",
                             "SLUICE_METRICS_LISTEN",
                             "SLUICE_MPI_BARRIER",
                             "SLUICE_MPI_MIN_BYTES",
                             "SLUICE_MPI_REPORT",
                             "SLUICE_MTU",
                             "SLUICE_OP_TIMEOUT_MS",
                             "SLUICE_PORT",
                             "SLUICE_RANK",
                             "SLUICE_RETRANSMIT_TIMEOUT_MIN_US",
                             "SLUICE_ROUND_TRIP_MAX_US",
                             "SLUICE_SECRET",
                             "SLUICE_SECRET_FILE",
                             "SLUICE_STREAMS",
                             "SLUICE_TIMELINE",
                             "SLUICE_VLAN",
                             "SLUICE_WORLD_SIZE"};

/// In capitals and without underscores.
std::string squeezed(std::string_view name) {
  std::string letters;
  for (const unsigned char c : name)
    if (c != '_') letters += static_cast<char>(std::toupper(c));
  return letters;
}

/// JOIN_TIMEOUT_MS -> JOIN_TIMEOUT.
std::string_view without_unit(std::string_view name) {
  for (const std::string_view unit :
       {"_US", "_MS", "_S", "_SECONDS", "_BYTES", "_KIB", "_MB", "_MIB", "_GB", "_GIB"})
    if (name.ends_with(unit)) return name.substr(0, name.size() - unit.size());
  return name;
}

/// Three wrong letters of a long name are a mistake, of JOB they are another word.
std::size_t edits_allowed(std::string_view ending) {
  return std::min<std::size_t>(1 + ending.size() / 6, 3);
}

std::string ending_of(const std::string& name) {
  return name.substr(kPrefix.size());
}

/// The known variable whose name looks most like `name`, if any does.
std::optional<std::string> nearest_variable(const std::string& name) {
  static const std::vector<std::string> endings = [] {
    std::vector<std::string> all;
    for (const std::string& known : known_variables()) all.push_back(ending_of(known));
    return all;
  }();
  const auto nearest = nearest_name(ending_of(name), endings);
  return nearest ? std::optional(std::string(kPrefix) + *nearest) : std::nullopt;
}

/// The known variable that `name` is meant to be, beyond doubt.
std::optional<std::string> meant_by(const std::string& name) {
  const auto& known = known_variables();
  const auto first = [&](const auto& is_meant) -> std::optional<std::string> {
    const auto found = std::find_if(known.begin(), known.end(), is_meant);
    return found == known.end() ? std::nullopt : std::optional(*found);
  };
  if (const auto same = first([letters = squeezed(name)](const std::string& candidate) {
        return squeezed(candidate) == letters;
      }))
    return same;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  if (const auto same = first([&](const std::string& candidate) {
        return without_unit(candidate) == without_unit(name);
      }))
    return same;
  const auto nearest = nearest_variable(name);
  const bool is_near = nearest && edit_distance(name, *nearest) <= edits_allowed(ending_of(name));
  return is_near ? nearest : std::nullopt;
}

/// One that has all words of `name` and more, at either end; else one that looks like it.
std::optional<std::string> suggestion_for(const std::string& name) {
  const std::string ending = ending_of(name);
  for (const std::string& known : known_variables())
    if (known.ends_with("_" + ending) || known.starts_with(name + "_") ||
        name.starts_with(known + "_"))
      return known;
  return nearest_variable(name);
}

/// What comes before _SERVICE_HOST, in the names that Kubernetes gives a container.
std::vector<std::string> service_prefixes(const std::vector<std::string>& names) {
  constexpr std::string_view kHost = "_SERVICE_HOST";
  std::vector<std::string> prefixes;
  for (const std::string& name : names)
    if (name.ends_with(kHost)) prefixes.push_back(name.substr(0, name.size() - kHost.size()));
  return prefixes;
}

bool is_of_service(const std::string& name, const std::string& prefix) {
  return name == prefix + "_PORT" || name.starts_with(prefix + "_PORT_") ||
         name.starts_with(prefix + "_SERVICE_");
}

std::string warning_of(const std::string& name) {
  const auto suggestion = suggestion_for(name);
  return "the environment has " + name + ", which Sluice does not read" +
         (suggestion ? ": is " + *suggestion + " meant?" : "");
}

}  // namespace

const std::vector<std::string>& known_variables() {
  static const std::vector<std::string> known = [] {
    std::vector<std::string> names(kOthers.begin(), kOthers.end());
    names.push_back(variable_of("config"));
    for (const AggregatorSetting& setting : aggregator_settings())
      names.push_back(variable_of(setting.name));
    return names;
  }();
  return known;
}

std::vector<std::string> check_variable_names(const std::vector<std::string>& names) {
  const auto& known = known_variables();
  const auto services = service_prefixes(names);
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    if (!name.starts_with("SLUICE") || std::find(known.begin(), known.end(), name) != known.end() ||
        std::any_of(services.begin(), services.end(),
                    [&](const std::string& service) { return is_of_service(name, service); }))
      continue;
    if (const auto meant = meant_by(name))
      throw Error(ErrorCode::kInvalidArgument,
                  "the environment has " + name + ": did you mean " + *meant + "?");
    if (name.starts_with(kPrefix)) warnings.push_back(warning_of(name));
  }
  return warnings;
}

std::optional<std::string> warning_of_half_placement(const Environment& environment) {
  const bool has_rank = environment("RANK").has_value();
  if (has_rank == environment("WORLD_SIZE").has_value() || find_placement(environment))
    return std::nullopt;
  return std::string("the environment has ") + (has_rank ? "RANK" : "WORLD_SIZE") + ", but not " +
         (has_rank ? "WORLD_SIZE" : "RANK") + ": neither is taken";
}

}  // namespace sluice::config
