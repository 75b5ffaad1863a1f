/* Two ranks that start two more: sums over both pairs, which have no MPI_Init in common, and over
 * each pair by itself. */
#include "check.h"

enum { kCount = 3000 };

static const int pair[] = {0, 1};

/* The parents come first; all have the same numbers in their worlds. */
static const int both_pairs[] = {0, 1, 0, 1};

/* With this library, too, which Open MPI 5 would not give them by itself. */
static void spawn_pair(const char* program, MPI_Comm* pair_of_children) {
  MPI_Info info;
  MPI_Info_create(&info);
  const char* library = getenv("LD_PRELOAD");
  char variable[4096];
  if (library != NULL && snprintf(variable, sizeof variable, "LD_PRELOAD=%s", library) > 0)
    MPI_Info_set(info, "PMIX_ENVAR", variable);
  MPI_Comm_spawn(program, MPI_ARGV_NULL, 2, info, 0, MPI_COMM_WORLD, pair_of_children,
                 MPI_ERRCODES_IGNORE);
  MPI_Info_free(&info);
}

int main(int argc, char** argv) {
  (void)argc;
  start();
  MPI_Comm others;
  MPI_Comm_get_parent(&others);
  const int is_child = others != MPI_COMM_NULL;
  if (!is_child) spawn_pair(argv[0], &others);
  MPI_Comm all;
  MPI_Intercomm_merge(others, is_child, &all);
  check_sum("both pairs", all, both_pairs, 4, kCount);
  check_sum("a pair", MPI_COMM_WORLD, pair, 2, kCount);
  MPI_Comm_free(&all);
  MPI_Comm_disconnect(&others);
  if (rank == 0 && !is_child) printf("digest %016llx\n", (unsigned long long)digest);
  return MPI_Finalize();
}
