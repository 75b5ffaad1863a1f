#include "bindings/mpi/interposer.hpp"

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "bindings/mpi/print_line.hpp"

namespace sluice_mpi {
namespace {

// Never destroyed but in MPI_Finalize: a program may end without, and a child that was forked may
// end as well, which has none of the threads.
Interposer* interposer = nullptr;

int rank_in_world() {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int ranks_in_world() {
  int ranks = 0;
  PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

bool has_parent() {
  MPI_Comm parent = MPI_COMM_NULL;
  PMPI_Comm_get_parent(&parent);
  return parent != MPI_COMM_NULL;
}

bool reports(const Interposer& ending) {
  if (rank_in_world() != 0) return false;
  return ending.report == Settings::Report::kAllWorlds ||
         (ending.report == Settings::Report::kFirstWorld && !ending.is_spawned);
}

std::string report_of(const Interposer& ending) {
  const std::string world = std::to_string(ranks_in_world());
  return ending.call_report.report(ending.is_spawned ? world + ", spawned" : world,
                                   ending.terms.min_bytes);
}

bool has_thread_multiple() {
  int provided = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
}

}  // namespace

Interposer::Interposer(const Settings& settings, const Terms& agreed)
    : terms(agreed),
      report(settings.report),
      shares_memory(settings.context.host_level),
      is_spawned(has_parent()),
      memberships(settings, progress) {}

Interposer* Interposer::active() {
  return interposer;
}

void Interposer::open() {
  if (ranks_in_world() == 1) return;
  std::optional<Settings> settings;
  std::string why_not;
  try {
    settings = Settings::from_environment();
  } catch (const sluice::Error& error) {
    why_not = error.what();
  }
  const Settings known = settings.value_or(Settings());
  const NegotiationResult negotiated = negotiate({.ready = settings.has_value(),
                                                  .thread_multiple = has_thread_multiple(),
                                                  .min_bytes = known.min_bytes,
                                                  .barriers = known.barriers,
                                                  .time_limit = known.job.join_timeout});
  if (negotiated.is_reporter)
    print_line("everything passes through to MPI: rank " + std::to_string(rank_in_world()) + ": " +
               why_not);
  if (!negotiated.terms) return;
  interposer = new Interposer(*settings, *negotiated.terms);
  // MPI_Iallreduce may not wait for other ranks; MPI_Init may.
  if (negotiated.terms->thread_multiple) interposer->memberships.of(MPI_COMM_WORLD);
}

void Interposer::close() {
  if (interposer == nullptr) return;
  if (reports(*interposer)) std::fputs(report_of(*interposer).c_str(), stderr);
  delete std::exchange(interposer, nullptr);
}

}  // namespace sluice_mpi
