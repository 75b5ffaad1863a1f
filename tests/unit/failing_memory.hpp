// Memory that fails under who reads it, as a damaged page does: the kernel raises SIGBUS.
#pragma once

#include <csignal>
#include <span>

#include <sys/mman.h>
#include <unistd.h>

#include "common/memory/loss_watch.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::parts {

/// From now on who reads there gets a SIGBUS: a file without bytes takes the mapping's place.
inline void make_fail(std::span<const std::byte> mapping) {
  const int empty = memfd_create("empty", 0);
  REQUIRE(empty >= 0);
  void* const at = const_cast<std::byte*>(mapping.data());
  REQUIRE(mmap(at, mapping.size(), PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0) == at);
  close(empty);
}

/// Of SIGBUS, while it lives: what cannot be replaced ends the process.
class BusErrorHandler {
 public:
  BusErrorHandler() {
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      if (!memory::replace_lost_mapping(info->si_addr)) std::signal(SIGBUS, SIG_DFL);
    };
    sigaction(SIGBUS, &action, &before_);
  }
  BusErrorHandler(const BusErrorHandler&) = delete;
  BusErrorHandler& operator=(const BusErrorHandler&) = delete;
  ~BusErrorHandler() { sigaction(SIGBUS, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

}  // namespace sluice::parts
