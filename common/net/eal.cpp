#include "common/net/eal.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"
#include "common/log/logger.hpp"
#include "common/net/eal_log.hpp"
#include "common/net/own_directory.hpp"
#include "common/net/thread_state_guard.hpp"

namespace sluice::net {
namespace {

bool environment_started = false;

// One lcore of DPDK that may run on every CPU of the caller, so that DPDK does not choose.
std::string lcores(const cpu_set_t& affinity) {
  std::string cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &affinity)) cpus += (cpus.empty() ? "" : ",") + std::to_string(cpu);
  return "--lcores=0@(" + cpus + ")";
}

std::vector<std::string> arguments(const EalOptions& options, const cpu_set_t& affinity) {
  std::vector<std::string> args{"sluice", lcores(affinity), "-m",
                                std::to_string(options.memory_mib)};
  if (options.hugepages) {
    // Few memory files, which end with the process: virtio-user passes at most eight to its peer.
    args.insert(args.end(), {"--in-memory", "--single-file-segments"});
  } else {
    args.insert(args.end(), {"--no-huge", "--no-shconf"});
  }
  if (!options.pci) args.emplace_back("--no-pci");
  if (!options.telemetry) args.emplace_back("--no-telemetry");
  args.push_back("--file-prefix=" + (options.file_prefix.empty()
                                         ? "sluice-" + std::to_string(getpid())
                                         : options.file_prefix));
  args.insert(args.end(), options.extra_args.begin(), options.extra_args.end());
  return args;
}

std::string made_at_random;  // the runtime directory, if another user has the first choice of name

// Does not touch what other users have put in its place.
std::string make_runtime_directory() {
  std::error_code ignored;
  const std::string name =
      std::filesystem::temp_directory_path(ignored) / ("sluice-" + std::to_string(geteuid()));
  const bool is_link = std::filesystem::is_symlink(name, ignored);
  if (!is_link) try {
      make_own_directory("runtime directory", name);
      return name;
    } catch (const Error&) {
      // Another user may have guessed the name.
    }
  std::string unguessed = name + "-XXXXXX";
  if (mkdtemp(unguessed.data()) == nullptr)
    throw Error(ErrorCode::kUnavailable,
                "runtime directory '" + unguessed + "' cannot be created: " + std::strerror(errno));
  return made_at_random = unguessed;
}

// Without XDG_RUNTIME_DIR, an unprivileged DPDK uses /tmp/dpdk, which belongs to the user who came
// first. While DPDK starts, this replaces it by a directory of this user's own.
class RuntimeDirectory {
 public:
  RuntimeDirectory() {
    if (geteuid() == 0 || std::getenv("XDG_RUNTIME_DIR")) return;
    setenv("XDG_RUNTIME_DIR", make_runtime_directory().c_str(), 1);
    set_ = true;
  }
  ~RuntimeDirectory() {
    if (set_) unsetenv("XDG_RUNTIME_DIR");
  }

 private:
  bool set_ = false;
};

// The directory only has the telemetry socket. Without that it is removed at once, so that a
// process that is killed leaves nothing behind.
void remove_runtime_directory() {
  std::error_code ignored;
  std::filesystem::remove_all(rte_eal_get_runtime_dir(), ignored);
  if (made_at_random.empty()) return;
  std::filesystem::remove(made_at_random + "/dpdk", ignored);
  std::filesystem::remove(made_at_random, ignored);
}

/// DPDK makes a file of this size. Beyond the limit, a signal would end the process.
void require_file_size(std::size_t memory_mib) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < memory_mib << 20)
    throw Error(ErrorCode::kUnavailable,
                "packet memory of " + std::to_string(memory_mib) + " MiB: files may have at most " +
                    std::to_string(limit.rlim_cur) + " bytes here (ulimit -f)");
}

void check(const EalOptions& options) {
  if (options.memory_mib < limits::kMinMemoryMib || options.memory_mib > limits::kMaxMemoryMib)
    throw Error(ErrorCode::kInvalidArgument,
                "packet memory of " + std::to_string(options.memory_mib) +
                    " MiB: " + std::to_string(limits::kMinMemoryMib) + " to " +
                    std::to_string(limits::kMaxMemoryMib) + " expected");
  if (options.file_prefix.find('/') != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                "DPDK file prefix '" + options.file_prefix + "': a name without '/' expected");
  if (environment_started)
    throw Error(ErrorCode::kInvalidArgument,
                "DPDK was started in this process before; it starts once per process");
  require_file_size(options.memory_mib);
}

[[noreturn]] void fail(const EalOptions& options, int error, const std::string& complaints) {
  const bool bad_argument = error == EINVAL;
  std::string message = "DPDK does not start with " + std::to_string(options.memory_mib) +
                        " MiB of " + (options.hugepages ? "hugepages" : "ordinary memory") + ": " +
                        rte_strerror(error);
  if (!complaints.empty()) message += " (" + complaints + ")";
  if (options.hugepages && !bad_argument)
    message += "; free hugepages and access to them are expected";
  throw Error(bad_argument ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, message);
}

}  // namespace

Eal::Eal(const EalOptions& options) {
  check(options);
  EalLog::instance().open(options.log, options.log_level);
  EalLog::instance().collect();
  int result;
  {
    const ThreadStateGuard restore_at_end;
    const RuntimeDirectory runtime_directory;
    std::vector<std::string> args = arguments(options, restore_at_end.affinity());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    result = rte_eal_init(static_cast<int>(argv.size()), argv.data());
  }
  const int error = rte_errno;
  const std::string complaints = EalLog::instance().collected();
  if (result < 0) fail(options, error, complaints);
  environment_started = true;
  if (!options.telemetry) remove_runtime_directory();
}

// Does not call rte_eal_cleanup: DPDK 22.11 never joins its interrupt and vhost threads, and frees
// what they use (seen: "Error adding fd" panics in every second run that had just closed a port).
Eal::~Eal() {
  remove_runtime_directory();
}

std::size_t memory_available() {
  std::size_t bytes = 0;
  for (unsigned i = 0; i < rte_socket_count(); ++i) {
    rte_malloc_socket_stats stats{};
    if (rte_malloc_get_socket_stats(rte_socket_id_by_idx(i), &stats) == 0)
      bytes += stats.heap_freesz_bytes;
  }
  return bytes;
}

ThreadRegistration::ThreadRegistration() {
  const ThreadStateGuard restore_at_end;
  if (rte_thread_register() != 0)
    spdlog::debug("a thread cannot register with DPDK: {}", rte_strerror(rte_errno));
}

ThreadRegistration::~ThreadRegistration() {
  rte_thread_unregister();
}

}  // namespace sluice::net
