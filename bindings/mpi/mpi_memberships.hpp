// The job of each MPI communicator, and this process's part in it.
//
// A job is made in the first call on its communicator that is to be taken over and may wait for all
// ranks. They agree on it: where one rank cannot open its Context or join, all calls on that
// communicator pass through on all ranks. What came of it is kept as an attribute of the
// communicator, so the job ends when that is freed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <mpi.h>

#include <sluice/sluice.hpp>

#include "bindings/mpi/call_report.hpp"
#include "bindings/mpi/mpi_progress.hpp"
#include "bindings/mpi/mpi_settings.hpp"

namespace sluice_mpi {

struct Membership {
  MPI_Comm comm = MPI_COMM_NULL;
  Verdict verdict = Verdict::kTakenOver;    ///< on what Sluice could do by its size and elements
  std::optional<sluice::Communicator> job;  ///< there if the verdict is kTakenOver
};

/// All of this process. Several threads may ask at once, for different communicators.
class Memberships {
 public:
  Memberships(const Settings& settings, MpiProgress& progress);
  Memberships(const Memberships&) = delete;
  Memberships& operator=(const Memberships&) = delete;
  ~Memberships();  ///< leaves every job and closes the Context

  /// Collective over the communicator at its first use.
  std::shared_ptr<Membership> of(MPI_Comm comm);

  /// Null if there was no such use.
  std::shared_ptr<Membership> known(MPI_Comm comm);

 private:
  struct CommRank;
  struct Agreement;

  static int forget(MPI_Comm comm, int keyval, void* attribute, void* memberships);
  static Agreement agree(const CommRank& self, bool is_well, std::uint32_t job);

  void form(Membership& membership);
  void join(Membership& membership, const CommRank& self);
  void refuse(Membership& membership, const CommRank& self, int failed,
              const std::optional<sluice::Error>& own);
  sluice::Context& context();

  const Settings settings_;
  MpiProgress& progress_;
  int keyval_ = MPI_KEYVAL_INVALID;

  std::once_flag context_opened_;
  std::shared_ptr<sluice::Context> context_;
  std::optional<sluice::Error> context_failure_;

  std::mutex mutex_;
  bool has_said_why_ = false;
  std::map<void*, std::shared_ptr<Membership>> memberships_;  // by their address, the attribute
};

}  // namespace sluice_mpi
