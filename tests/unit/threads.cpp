#include <csignal>
#include <cstddef>
#include <exception>
#include <string>

#include <pthread.h>

#include <sluice/error.hpp>

#include "common/memory/thread_without_signals.hpp"
#include "tests/unit/catch.hpp"

namespace threads_tests {

using namespace sluice;

namespace {

bool blocks_any_signal() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGTERM) == 1 || sigismember(&now, SIGINT) == 1;
}

/// While it lives, threads ask for more stack than there are addresses: none can be created.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    pthread_getattr_default_np(&before_);
    pthread_attr_init(&huge);
    REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 60) == 0);
    REQUIRE(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace

TEST_CASE("a thread of ours takes no signals, and its creator keeps its own") {
  REQUIRE_FALSE(blocks_any_signal());
  bool blocked = false;
  thread_without_signals([&] { blocked = blocks_any_signal(); }).join();
  CHECK(blocked);
  CHECK_FALSE(blocks_any_signal());
}

TEST_CASE("a thread that cannot be created leaves no signal blocked") {
  const NoThreads none;
  std::string says;
  try {
    thread_without_signals([] {}).join();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    says = error.what();
  } catch (const std::exception& other) {
    FAIL_CHECK("of another kind: " << other.what());
  }
  CHECK(says.find("thread") != std::string::npos);
  CHECK_FALSE(blocks_any_signal());
}

}  // namespace threads_tests
