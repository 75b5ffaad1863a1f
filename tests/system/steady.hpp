// What the ranks share that run until they are told to stop.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <sluice/sluice.hpp>

namespace sluice::steady {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// "rank 0: CODE [about rank R]: MESSAGE" to standard error, and to standard output "op K failed at
/// T" in seconds of CLOCK_MONOTONIC.
inline void tell(const Error& error) {
  if (error.op())
    std::printf("op %llu failed at %.6f\n", static_cast<unsigned long long>(*error.op()),
                seconds(Clock::now()));
  const char* const rank = std::getenv("SLUICE_RANK");
  const std::string about =
      error.rank() ? " about rank " + std::to_string(*error.rank()) : std::string();
  std::fprintf(stderr, "rank %s: %s%s: %s\n", rank == nullptr ? "?" : rank,
               std::string(name(error.code())).c_str(), about.c_str(), error.what());
}

inline std::size_t argument(int argc, char** argv, int index, std::size_t otherwise) {
  return argc > index ? std::strtoul(argv[index], nullptr, 10) : otherwise;
}

}  // namespace sluice::steady
