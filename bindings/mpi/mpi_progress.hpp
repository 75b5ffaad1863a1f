// MPI's own progress while a thread waits for Sluice.
//
// A rank inside an MPI call must go on serving the messages that it has begun: a peer may need them
// to come to the same collective. Sluice knows nothing of them, so who waits for Sluice lets MPI
// have a turn between.
#pragma once

#include <chrono>

#include <mpi.h>

#include <sluice/sluice.hpp>

namespace sluice_mpi {

class MpiProgress {
 public:
  MpiProgress() { PMPI_Comm_dup(MPI_COMM_SELF, &nobody_); }
  MpiProgress(const MpiProgress&) = delete;
  MpiProgress& operator=(const MpiProgress&) = delete;
  ~MpiProgress() { PMPI_Comm_free(&nobody_); }

  /// Until the op is done; throws its Error.
  void wait(const sluice::Work& work) {
    serve_until([&](auto bound) { return work.wait_for(bound); });
  }

  /// Until `is_done_within(bound)`, which is asked again and again.
  template <class F>
  void serve_until(F&& is_done_within) {
    while (!is_done_within(kBetweenTurns)) turn();
  }

 private:
  static constexpr std::chrono::milliseconds kBetweenTurns{1};

  /// A probe on a communicator that has no messages makes progress on all others.
  void turn() {
    int found = 0;
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, nobody_, &found, MPI_STATUS_IGNORE);
  }

  MPI_Comm nobody_ = MPI_COMM_NULL;
};

}  // namespace sluice_mpi
