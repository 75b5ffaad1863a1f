// libFuzzer target of the settings. The input is text: a line "--NAME" or "--NAME=VALUE" is an
// argument, "NAME=VALUE" in capitals a variable of the environment, anything else a line of the
// daemon's file, and of a file of secrets. Whatever they say, only sluice::Error may come of it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sluice/sluice.hpp>

#include "common/config/aggregator_config.hpp"
#include "common/config/secrets.hpp"
#include "worker/config/worker_settings.hpp"

namespace sluice::fuzz {
namespace {

/// A file that lies in memory, in place of the one that --config names.
class File {
 public:
  File() : fd_(memfd_create("settings", 0)) {
    if (fd_ < 0 || fchmod(fd_, 0600) != 0) throw std::runtime_error("no memory file");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void write(const std::string& text) {
    const bool written = ftruncate(fd_, 0) == 0 && pwrite(fd_, text.data(), text.size(), 0) ==
                                                       static_cast<ssize_t>(text.size());
    if (!written) throw std::runtime_error("cannot write to a memory file");
  }

 private:
  const int fd_;
};

bool is_variable(std::string_view line) {
  const auto equals = line.find('=');
  return equals != 0 && equals != std::string_view::npos &&
         line.substr(0, equals).find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
             std::string_view::npos;
}

/// No other file than ours is read: some never end.
bool names_a_file(std::string_view line) {
  return line.starts_with("--config") || line.starts_with("SLUICE_AGGREGATOR_CONFIG") ||
         line.find("SECRET_FILE") != std::string_view::npos ||
         line.find("secret-file") != std::string_view::npos;
}

struct Settings {
  std::vector<std::string> arguments{"sluice-aggregator"};
  std::vector<std::string> variables;
  std::string file;

  explicit Settings(std::string_view text) {
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      add(std::string(line));
    }
  }

 private:
  void add(const std::string& line) {
    if (names_a_file(line) || line.find('\0') != std::string::npos) return;
    if (line.starts_with('-'))
      arguments.push_back(line);
    else if (is_variable(line))
      variables.push_back(line);
    else
      file += line + '\n';
  }
};

/// Variables of this process, while it lives.
class Variables {
 public:
  explicit Variables(const std::vector<std::string>& all) {
    for (const std::string& variable : all) {
      const auto equals = variable.find('=');
      names_.push_back(variable.substr(0, equals));
      setenv(names_.back().c_str(), variable.c_str() + equals + 1, 1);
    }
  }
  ~Variables() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::string> names_;
};

template <class Call>
void only_our_error_from(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw std::logic_error(error.what());
  }
}

void run(std::string_view text) {
  static File file;
  Settings settings(text);
  file.write(settings.file);
  const Variables variables(settings.variables);
  if (!settings.file.empty())
    settings.arguments.insert(settings.arguments.end(), "--config=" + file.path());
  std::vector<const char*> argv;
  for (const std::string& argument : settings.arguments) argv.push_back(argument.c_str());
  only_our_error_from(
      [&] { config::parse_aggregator(static_cast<int>(argv.size()), argv.data()); });
  only_our_error_from([&] { config::SecretStore::from_file(file.path()); });
  only_our_error_from([] { config::worker_secret(); });
  only_our_error_from([] { validate(ContextOptions::from_environment()); });
  only_our_error_from([] { validate(JobOptions::from_environment()); });
}

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
