// What there is between MPI_Init and MPI_Finalize where calls may be taken over.
#pragma once

#include <mpi.h>

#include "bindings/mpi/call_report.hpp"
#include "bindings/mpi/error_codes.hpp"
#include "bindings/mpi/mpi_memberships.hpp"
#include "bindings/mpi/mpi_progress.hpp"
#include "bindings/mpi/mpi_settings.hpp"
#include "bindings/mpi/negotiation.hpp"
#include "bindings/mpi/requests.hpp"

namespace sluice_mpi {

struct Interposer {
  static Interposer* active();  ///< null: everything passes through
  static void open();           ///< right after MPI_Init
  static void close();          ///< right before MPI_Finalize

  Interposer(const Settings& settings, const Terms& agreed);

  const Terms terms;
  const Settings::Report report;
  const bool shares_memory;
  const bool is_spawned;  ///< by ranks of another world, from which it may disconnect any time
  CallReport call_report;
  ErrorCodes errors;
  MpiProgress progress;
  Memberships memberships;
  Requests requests{errors, call_report};  // holds memberships, so it goes first
};

}  // namespace sluice_mpi
