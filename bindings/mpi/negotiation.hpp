// Whether all ranks of MPI_COMM_WORLD are ready to have their collectives taken over.
//
// Asked in MPI_Init by messages between each rank and rank 0, with a bound: a collective would hang
// or go wrong where a rank runs without this library. Nothing is sent to a rank that did not speak,
// but to rank 0, which all others speak to: without the library that may receive their message, of
// tag 20942, by MPI_ANY_SOURCE and MPI_ANY_TAG.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace sluice_mpi {

/// What this rank brings.
struct Candidate {
  bool ready = false;  ///< its settings are good
  bool thread_multiple = false;
  std::uint64_t min_bytes = 0;
  bool barriers = false;
  std::chrono::milliseconds time_limit{};  ///< how long rank 0 waits for the others
};

/// What holds for all ranks.
struct Terms {
  bool thread_multiple = false;  ///< on every rank
  std::uint64_t min_bytes = 0;   ///< rank 0's
  bool barriers = false;         ///< rank 0's
};

struct NegotiationResult {
  std::optional<Terms> terms;  ///< none: every call of every rank passes through
  bool is_reporter = false;    ///< of the ranks that were not ready this is the one to say why
};

/// Collective over the ranks of MPI_COMM_WORLD that have this library.
NegotiationResult negotiate(const Candidate& candidate);

}  // namespace sluice_mpi
