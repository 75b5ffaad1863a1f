#include "bench/json_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include <sluice/error.hpp>

#include "bench/usage_error.hpp"

namespace sluice::bench {
namespace {

std::string temporary(const std::string& path) {
  return path + ".part";
}

}  // namespace

void check_writable(const std::string& path) {
  const auto refuse = [&path](const char* reason) {
    throw UsageError("--json '" + path + "': " + reason + "; allowed: a file that can be written");
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse("is a directory");
  if (!std::ofstream(temporary(path))) refuse(std::strerror(errno));
  std::filesystem::remove(temporary(path), ignored);
}

void write_json(const std::string& path, const nlohmann::ordered_json& report) {
  std::ofstream file(temporary(path));
  file << report.dump(2) << '\n';
  file.close();
  std::error_code error;
  if (file) {
    std::filesystem::rename(temporary(path), path, error);
    if (!error) return;
  }
  const std::string reason = error ? error.message() : std::strerror(errno);
  std::filesystem::remove(temporary(path), error);
  throw Error(ErrorCode::kUnavailable, "--json '" + path + "': cannot write: " + reason);
}

}  // namespace sluice::bench
