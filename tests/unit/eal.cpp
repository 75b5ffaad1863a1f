// DPDK's environment beside a host program, and pools of packet buffers.
#include "common/net/eal.hpp"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include <sluice/error.hpp>

#include "common/base/packet_buffer.hpp"
#include "common/base/packet_memory.hpp"
#include "common/net/eal_log.hpp"
#include "common/net/pool.hpp"
#include "common/net/thread_state_guard.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/one_eal.hpp"

namespace eal_tests {

using namespace sluice;
using namespace sluice::net;
using Catch::Contains;

namespace {

struct HostState {
  cpu_set_t affinity{};
  sigset_t mask{};
  std::vector<void (*)(int)> handlers;
  HostState() {
    pthread_getaffinity_np(pthread_self(), sizeof(affinity), &affinity);
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int s = 1; s < 32; ++s) {
      struct sigaction action {};
      sigaction(s, nullptr, &action);
      handlers.push_back(action.sa_handler);
    }
  }
  bool operator==(const HostState& o) const {
    return CPU_EQUAL(&affinity, &o.affinity) && handlers == o.handlers &&
           std::memcmp(&mask, &o.mask, sizeof(int) * 2) == 0;
  }
};

bool start_kept_the_host_as_it_was = false;

void start_eal() {
  static const HostState before;
  start_eal_once();
  static const bool once = [] { return start_kept_the_host_as_it_was = HostState() == before; }();
  (void)once;
}

}  // namespace

TEST_CASE("DPDK starts without a trace on the calling thread, once") {
  start_eal();
  CHECK(start_kept_the_host_as_it_was);
  CHECK(memory_available() > 0);
  CHECK_THROWS_WITH(Eal({}), Contains("once per process"));
  EalOptions options;
  options.memory_mib = 3;
  CHECK_THROWS_WITH(Eal(options), Contains("3 MiB: 16 to 1048576 expected"));
}

TEST_CASE("DPDK's lines are told whole, and no others than are news") {
  start_eal();
  std::vector<std::string> told;
  EalLog& log = EalLog::instance();
  log.open([&](LogLevel, std::string_view line) { told.emplace_back(line); }, LogLevel::kWarn);
  for (const std::string_view piece :
       {"VIRTIO_DRIVER: virtio_user_dev_init_mac(): (/a/socket) No valid MAC, use ran", "dom\nETH",
        "DEV: a line", " of three pieces\n\nvhost_user_read(): routine\nthe last\n"})
    log.write(piece);
  log.open([](LogLevel, std::string_view) {}, LogLevel::kWarn);
  CHECK(told == std::vector<std::string>{"ETHDEV: a line of three pieces", "the last"});
}

TEST_CASE("A host's signal handlers stay its own while a port opens or closes") {
  const auto current = [] {
    struct sigaction action {};
    sigaction(SIGUSR1, nullptr, &action);
    return action.sa_handler;
  };
  void (*const host_installs)(int) = [](int) {};
  {
    const ThreadStateGuard while_dpdk_works;
    std::signal(SIGUSR1, host_installs);  // another thread of the host
  }
  CHECK(current() == host_installs);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST_CASE("A pool lends its buffers and gets them back") {
  start_eal();
  BufferPool pool("small", 3, 100);
  std::vector<Buffer> lent;
  for (int i = 0; i < 3; ++i) lent.push_back(pool.allocate(100));
  CHECK(lent.back().bytes().size() == 100);
  CHECK(pool.available() == 0);
  CHECK_FALSE(pool.allocate(1));
  lent.pop_back();
  CHECK_FALSE(pool.allocate(101));
  CHECK(pool.allocate(100));
  lent.clear();
  CHECK(pool.available() == pool.size());
}

TEST_CASE("A buffer takes what the memory rules count for it") {
  start_eal();
  const auto bytes_of_pool = [](std::size_t count, std::size_t payload_bytes) {
    const std::size_t before = memory_available();
    const BufferPool pool("measured", count, payload_bytes);
    return before - memory_available();
  };
  for (const std::size_t mtu : {576, 1500, 9000}) {
    // The difference: a pool of any size also takes about 1 MiB for the threads' caches.
    const std::size_t taken =
        (bytes_of_pool(4000, mtu - 28) - bytes_of_pool(2000, mtu - 28)) / 2000;
    CHECK(taken <= packet_buffer_bytes(mtu));
    CHECK(taken >= packet_buffer_bytes(mtu) * 9 / 10);
  }
}

TEST_CASE("A pool that does not fit says what it needs and what there is") {
  start_eal();
  try {
    BufferPool pool("huge", 1 << 20, 8972);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    CHECK_THAT(error.what(), Contains("need about 9") && Contains("MiB of packet memory are free"));
  }
  const BufferPool pool("twin", 8, 100);
  CHECK_THROWS_WITH(BufferPool("twin", 8, 100), Contains("exists already"));
  CHECK_THROWS_WITH(BufferPool("none", 0, 100), Contains("0 buffers"));
  CHECK_THROWS_WITH(BufferPool(std::string(30, 'x'), 8, 100), Contains("25 characters"));
  CHECK_THROWS_WITH(BufferPool("long", 8, 70000), Contains("70000"));
}

TEST_CASE("References to a buffer are counted") {
  start_eal();
  BufferPool pool("counted", 4, 100);
  Buffer a = pool.allocate(10);
  std::fill(a.writable().begin(), a.writable().end(), std::byte{7});
  Buffer b = a.share();
  CHECK(a.references() == 2);
  CHECK(b.bytes().data() == a.bytes().data());
  CHECK(b.bytes().size() == 10);
  Buffer c = std::move(a);
  CHECK_FALSE(a);
  CHECK(a.bytes().empty());
  CHECK(c.references() == 2);
  c = {};
  CHECK(b.references() == 1);
  CHECK(pool.available() == 3);
  b = {};
  CHECK(pool.available() == 4);
}

}  // namespace eal_tests
