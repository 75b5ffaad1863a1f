// What the environment says, read once in MPI_Init.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

namespace sluice_mpi {

struct Settings {
  sluice::ContextOptions context;
  sluice::JobOptions job;  ///< rank, world size and id are each communicator's own

  /// Smaller tensors pass through; rank 0's holds for all.
  std::uint64_t min_bytes = 1 << 20;

  /// Whether barriers are taken over; rank 0's holds for all. Not by default, as MPI's own are
  /// faster on one machine.
  bool barriers = false;

  /// Which worlds' rank 0 says at exit what was taken over: the first, which mpirun started, or
  /// also those that MPI_Comm_spawn makes.
  enum class Report { kOff, kFirstWorld, kAllWorlds };
  Report report = Report::kFirstWorld;

  /// Throws sluice::Error with the variable, its value and what was expected.
  static Settings from_environment();
};

/// A variable of the MPI library's own, for its settings beside `context` and `job`.
struct Variable {
  std::string name;
  std::string allowed;
  std::string help;
  void (*assign)(Settings&, const Variable&, const std::string& text);
  std::string (*show)(const Settings&);
};

/// All of them, from which docs/configuration.md is made.
const std::vector<Variable>& variables();

}  // namespace sluice_mpi
