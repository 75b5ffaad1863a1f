#include "bindings/mpi/mpi_settings.hpp"

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

namespace sluice_mpi {
namespace {

using sluice::Error;
using sluice::ErrorCode;

[[noreturn]] void refuse(const Variable& variable, const std::string& value) {
  throw Error(ErrorCode::kInvalidArgument,
              variable.name + "=" + value + ": " + variable.allowed + " expected");
}

void assign_min_bytes(Settings& settings, const Variable& variable, const std::string& text) {
  std::uint64_t bytes = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, bytes);
  if (failure != std::errc() || stop != end || bytes == 0) refuse(variable, text);
  settings.min_bytes = bytes;
}

void assign_barriers(Settings& settings, const Variable& variable, const std::string& text) {
  if (text != "on" && text != "off") refuse(variable, text);
  settings.barriers = text == "on";
}

void assign_report(Settings& settings, const Variable& variable, const std::string& text) {
  if (text == "on")
    settings.report = Settings::Report::kFirstWorld;
  else if (text == "all")
    settings.report = Settings::Report::kAllWorlds;
  else if (text == "off")
    settings.report = Settings::Report::kOff;
  else
    refuse(variable, text);
}

std::string shown_report(const Settings& settings) {
  switch (settings.report) {
    case Settings::Report::kOff:
      return "off";
    case Settings::Report::kFirstWorld:
      return "on";
    case Settings::Report::kAllWorlds:
      return "all";
  }
  return "";
}

/// As mpirun says; parts of the world have no say of their own.
bool is_on_one_host() {
  const char* const all = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* const local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return all == nullptr || local == nullptr || std::string_view(all) == local;
}

}  // namespace

const std::vector<Variable>& variables() {
  static const std::vector<Variable> all{
      {"SLUICE_MPI_MIN_BYTES", "a number of bytes from 1",
       "Smaller tensors pass through to MPI; rank 0's value holds for all.", assign_min_bytes,
       [](const Settings& settings) { return std::to_string(settings.min_bytes); }},
      {"SLUICE_MPI_BARRIER", "\"on\" or \"off\"",
       "Whether barriers are taken over, too; rank 0's value holds for all.", assign_barriers,
       [](const Settings& settings) { return std::string(settings.barriers ? "on" : "off"); }},
      {"SLUICE_MPI_REPORT", "\"on\", \"all\" or \"off\"",
       "Whether rank 0 reports at the end what was taken over; all: also of each world that"
       " MPI_Comm_spawn makes.",
       assign_report, shown_report},
  };
  return all;
}

Settings Settings::from_environment() {
  Settings settings{.context = sluice::ContextOptions::from_environment(),
                    .job = sluice::JobOptions::from_environment()};
  if (settings.context.aggregators.empty() && !is_on_one_host())
    throw Error(ErrorCode::kInvalidArgument,
                "SLUICE_AGGREGATORS is not set, and the ranks are on several hosts");
  for (const Variable& variable : variables())
    if (const char* const text = std::getenv(variable.name.c_str()); text && *text != '\0')
      variable.assign(settings, variable, text);
  return settings;
}

}  // namespace sluice_mpi
