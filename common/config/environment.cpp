#include "common/config/environment.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <unistd.h>

#include "common/base/ids.hpp"
#include "common/config/value.hpp"

namespace sluice::config {
namespace {

struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_ranks;
};

constexpr Launcher kOwn{"SLUICE_RANK", "SLUICE_WORLD_SIZE", "SLUICE_LOCAL_WORLD_SIZE"};
constexpr std::array<Launcher, 4> kLaunchers{
    {{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
     {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
     {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"}}};

Placement parse(const Launcher& launcher, const std::string& rank, const std::string& world_size) {
  const auto size = parse_integer(launcher.world_size, {1, kMaxRanks}, world_size);
  try {
    return {static_cast<std::uint16_t>(parse_integer(launcher.rank, {0, size - 1}, rank)),
            static_cast<std::uint16_t>(size)};
  } catch (const Error& error) {
    throw Error(error.code(),
                std::string(error.what()) + " (" + launcher.world_size + " is " + world_size + ")");
  }
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

std::vector<std::string> process_variable_names() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (equals + 1 < text.size()) names.emplace_back(text.substr(0, equals));
  }
  return names;
}

std::optional<Placement> find_placement(const Environment& environment) {
  const auto own_rank = environment(kOwn.rank);
  const auto own_size = environment(kOwn.world_size);
  if (own_rank && own_size) return parse(kOwn, *own_rank, *own_size);
  if (own_rank || own_size)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(own_rank ? kOwn.rank : kOwn.world_size) + " = '" +
                    (own_rank ? *own_rank : *own_size) + "' is set, but " +
                    (own_rank ? kOwn.world_size : kOwn.rank) + " is not: set both or neither");
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = environment(launcher.rank);
    const auto world_size = environment(launcher.world_size);
    if (rank && world_size) return parse(launcher, *rank, *world_size);
  }
  return std::nullopt;
}

std::optional<std::uint16_t> find_local_ranks(const Environment& environment,
                                              std::uint16_t world_size) {
  const auto says = [&](const Launcher& launcher) {
    const auto size = environment(launcher.world_size);
    return environment(launcher.rank) && size && *size == std::to_string(world_size);
  };
  const auto* found = &kOwn;
  if (!says(kOwn)) {
    found = std::find_if(kLaunchers.begin(), kLaunchers.end(), says);
    if (found == kLaunchers.end()) return std::nullopt;
  }
  const auto text = environment(found->local_ranks);
  if (!text) return std::nullopt;
  return static_cast<std::uint16_t>(parse_integer(found->local_ranks, {1, kMaxRanks}, *text));
}

Placement placement_from(const Environment& environment) {
  return find_placement(environment).value_or(Placement{});
}

}  // namespace sluice::config
