#include "bindings/mpi/settings.hpp"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

namespace sluice_mpi {
namespace {

using sluice::Error;
using sluice::ErrorCode;

std::optional<std::string> variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

[[noreturn]] void refuse(const std::string& name, const std::string& value,
                         const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument, name + "=" + value + ": " + expected + " expected");
}

std::uint64_t parse_bytes(const std::string& name, const std::string& text) {
  std::uint64_t bytes = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, bytes);
  if (failure != std::errc() || stop != end || bytes == 0)
    refuse(name, text, "a number of bytes from 1");
  return bytes;
}

bool parse_switch(const std::string& name, const std::string& text) {
  if (text != "on" && text != "off") refuse(name, text, "\"on\" or \"off\"");
  return text == "on";
}

Settings::Report parse_report(const std::string& name, const std::string& text) {
  if (text == "on") return Settings::Report::kFirstWorld;
  if (text == "all") return Settings::Report::kAllWorlds;
  if (text == "off") return Settings::Report::kOff;
  refuse(name, text, "\"on\", \"all\" or \"off\"");
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings{.context = sluice::ContextOptions::from_environment(),
                    .job = sluice::JobOptions::from_environment()};
  if (settings.context.aggregators.empty())
    throw Error(ErrorCode::kInvalidArgument, "SLUICE_AGGREGATORS is not set");
  if (const auto text = variable("SLUICE_MPI_MIN_BYTES"))
    settings.min_bytes = parse_bytes("SLUICE_MPI_MIN_BYTES", *text);
  if (const auto text = variable("SLUICE_MPI_BARRIER"))
    settings.barriers = parse_switch("SLUICE_MPI_BARRIER", *text);
  if (const auto text = variable("SLUICE_MPI_REPORT"))
    settings.report = parse_report("SLUICE_MPI_REPORT", *text);
  return settings;
}

}  // namespace sluice_mpi
