// What the tests of settings share: a directory, an environment, and the parser called with both.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include "common/config/aggregator_config.hpp"
#include "common/config/aggregator_settings.hpp"
#include "common/config/environment.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::config {

namespace fs = std::filesystem;
using Catch::Contains;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

/// A fresh directory that goes with everything in it.
class Directory {
 public:
  Directory() {
    std::string pattern =
        (fs::temp_directory_path() / "sluice-config-").string() + std::string(6, 'X');
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  std::string path() const { return path_.string(); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

inline Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

/// On a machine of so many cores: tests are the same on any.
inline ParseOutcome parse(const Words& arguments, Variables variables = {},
                          const Cores& cores = {2, std::nullopt}) {
  std::vector<const char*> argv{"sluice-aggregator"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  Words names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return parse_aggregator(static_cast<int>(argv.size()), argv.data(),
                          environment_of(std::move(variables)), names, cores);
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

inline std::string error_of(const Words& arguments, Variables variables = {}) {
  return error_of([&] { parse(arguments, std::move(variables)); });
}

/// `arguments` with the least that a valid command line has.
inline Words valid(Words arguments) {
  arguments.insert(arguments.begin(), {"--vhost-dir", fs::temp_directory_path().string()});
  return arguments;
}

inline Words shown(const AggregatorConfig& config, const std::string& name) {
  for (const AggregatorSetting& setting : aggregator_settings())
    if (setting.name == name) return setting.value.show(config);
  FAIL("no setting " << name);
  return {};
}

}  // namespace sluice::config
