#include "tests/system/api/guest.hpp"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

void on_signal(int) {}

/// State of the host program that a library must not change.
struct HostState {
  cpu_set_t affinity{};
  sigset_t mask{};
  std::array<struct sigaction, NSIG> handlers{};

  static HostState now() {
    HostState state;
    sched_getaffinity(0, sizeof state.affinity, &state.affinity);
    pthread_sigmask(SIG_SETMASK, nullptr, &state.mask);
    for (int s = 1; s < NSIG; ++s) sigaction(s, nullptr, &state.handlers[static_cast<size_t>(s)]);
    return state;
  }
};

bool same_mask(const sigset_t& a, const sigset_t& b) {
  for (int s = 1; s < NSIG; ++s)
    if (sigismember(&a, s) != sigismember(&b, s)) return false;
  return true;
}

void check_same(const HostState& before, const HostState& after) {
  check(CPU_EQUAL(&before.affinity, &after.affinity), "the thread's affinity was changed");
  check(same_mask(before.mask, after.mask), "the thread's signal mask was changed");
  for (std::size_t s = 1; s < NSIG; ++s)
    check(before.handlers[s].sa_handler == after.handlers[s].sa_handler,
          "the handler of signal " + std::to_string(s) + " was changed");
}

std::string status_field(const std::filesystem::path& task, const std::string& field) {
  std::ifstream file(task / "status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(field + ":", 0) == 0) return line.substr(field.size() + 2);
  return {};
}

/// Threads other than this one must block signals that a host program handles: SIGINT and SIGTERM,
/// SIGCHLD, SIGUSR1.
void check_threads_block_signals() {
  int others = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    ++others;
    const std::uint64_t blocked = std::stoull(status_field(task.path(), "SigBlk"), nullptr, 16);
    for (const int s : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGHUP})
      check((blocked >> (s - 1) & 1) != 0,
            "thread '" + status_field(task.path(), "Name") + "' takes signal " + std::to_string(s));
  }
  check(others > 0, "there is a progress thread");
}

}  // namespace

void good_guest() {
  const HostState at_start = HostState::now();
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &at_start.affinity)) CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  for (const int s : {SIGINT, SIGPIPE, SIGBUS, SIGUSR1}) std::signal(s, on_signal);

  const HostState before = HostState::now();
  {
    const Context context(ContextOptions::from_environment());
    check_same(before, HostState::now());
    check_threads_block_signals();
  }
  check_same(before, HostState::now());
  sched_setaffinity(0, sizeof at_start.affinity, &at_start.affinity);
}

}  // namespace sluice::api_test
