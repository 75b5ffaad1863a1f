/* Sums and barriers on communicators of every kind, many of them made and freed again. Four ranks.
 */
#include "check.h"

enum { kCount = 2000 };

static const int everyone[] = {0, 1, 2, 3};

static void check_twice(const char* what, MPI_Comm comm, const int* members, int size) {
  check_sum(what, comm, members, size, kCount);
  MPI_Barrier(comm);
  check_sum(what, comm, members, size, kCount);
}

static void check_split(void) {
  const int even[] = {0, 2};
  const int odd_reversed[] = {3, 1};
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank % 2 ? -rank : rank, &half);
  check_twice("a half", half, rank % 2 ? odd_reversed : even, 2);
  MPI_Comm_free(&half);
}

static void check_made_and_freed(void) {
  for (int i = 0; i < 5; ++i) {
    MPI_Comm copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    check_twice("a copy", copy, everyone, ranks);
    MPI_Comm copy_of_copy;
    MPI_Comm_dup(copy, &copy_of_copy);
    check_twice("a copy's copy", copy_of_copy, everyone, ranks);
    MPI_Comm_free(&copy);
    check_twice("a copy's copy", copy_of_copy, everyone, ranks);
    MPI_Comm_free(&copy_of_copy);
  }
}

static void check_grid(void) {
  const int sizes[] = {2, 2};
  const int periods[] = {0, 0};
  MPI_Comm grid;
  MPI_Cart_create(MPI_COMM_WORLD, 2, sizes, periods, 0, &grid);
  check_twice("a grid", grid, everyone, ranks);
  MPI_Comm_free(&grid);
}

/* Communicators of one rank, and between two groups, each of which gets the sum of the other. */
static void check_what_passes_through(void) {
  check_twice("alone", MPI_COMM_SELF, &rank, 1);
  MPI_Comm half;
  MPI_Comm both;
  MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank / 2 ? 0 : 2, 7, &both);
  check_twice("the other half", both, rank / 2 ? everyone : everyone + 2, 2);
  MPI_Comm_free(&both);
  MPI_Comm_free(&half);
}

int main(void) {
  start();
  MPI_Barrier(MPI_COMM_WORLD);
  check_twice("the world", MPI_COMM_WORLD, everyone, ranks);
  check_split();
  check_made_and_freed();
  check_grid();
  check_what_passes_through();
  check_twice("the world", MPI_COMM_WORLD, everyone, ranks);
  return finish();
}
