// What became of this rank's calls, for the report at exit.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include <sluice/statistics.hpp>

namespace sluice_mpi {

enum class Call : std::size_t { kAllreduce, kIallreduce, kBcast, kReduce, kAllgather, kBarrier };
inline constexpr std::size_t kCalls = 6;

/// Whether a call is taken over, or why it passes through to MPI. Every verdict follows from what
/// MPI wants to be equal on all ranks of the communicator, or from what they have agreed on, so
/// that all ranks come to the same.
enum class Verdict : std::size_t {
  kTakenOver,
  kSmall,         ///< below the least size
  kLarge,         ///< beyond what MPI packs
  kElements,      ///< a datatype or an operation that Sluice has not
  kCommunicator,  ///< one rank, more than 256, two groups, or several worlds
  kRefused,       ///< a rank could not join the communicator's job
  kNoJob,         ///< only calls that may wait for all ranks make the communicator's job
  kThreads,       ///< a rank runs without MPI_THREAD_MULTIPLE
  kNotAskedFor,   ///< a barrier, where the settings leave them to MPI
};
inline constexpr std::size_t kVerdicts = 9;

/// Its functions may be called by several threads at once.
class CallReport {
 public:
  void enter(Call call, Verdict verdict) { ++of(call).verdicts[std::size_t(verdict)]; }
  void charge(Call call, std::uint64_t tensor_bytes, const sluice::OpStatistics& cost) {
    of(call).tensor_bytes += tensor_bytes;
    of(call).bytes_sent += cost.bytes_sent;
  }

  /// `what` of a call that got kElements; of few kinds, as each is kept.
  void lacks(const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++lacking_[what];
  }

  /// A table of the calls that there were, with a line for each, and of the reasons why some passed
  /// through what can be said beyond their name. `world` is the one that this rank is 0 of.
  std::string report(const std::string& world, std::uint64_t min_bytes) const;

 private:
  struct Account {
    std::array<std::atomic<std::uint64_t>, kVerdicts> verdicts{};
    std::atomic<std::uint64_t> tensor_bytes{0};
    std::atomic<std::uint64_t> bytes_sent{0};
  };

  Account& of(Call call) { return accounts_[std::size_t(call)]; }
  bool has(Verdict verdict) const;
  static std::string line(const char* name, const Account& account);

  std::array<Account, kCalls> accounts_{};
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> lacking_;
};

}  // namespace sluice_mpi
