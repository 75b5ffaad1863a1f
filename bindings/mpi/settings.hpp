// What the environment says, read once in MPI_Init.
#pragma once

#include <cstdint>

#include <sluice/sluice.hpp>

namespace sluice_mpi {

struct Settings {
  sluice::ContextOptions context;
  sluice::JobOptions job;  ///< rank, world size and id are each communicator's own

  /// Smaller tensors pass through; rank 0's holds for all. SLUICE_MPI_MIN_BYTES.
  std::uint64_t min_bytes = 1 << 20;

  /// Whether rank 0 says at exit what was taken over. SLUICE_MPI_REPORT: "on" or "off".
  bool report = true;

  /// Throws sluice::Error with the variable, its value and what was expected.
  static Settings from_environment();
};

}  // namespace sluice_mpi
