/* One barrier, with barriers taken over on every rank that permits it. */
#include "check.h"

int main(int argc, char** argv) {
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  know_the_world();
  check("the level is as required", provided == MPI_THREAD_MULTIPLE);
  MPI_Barrier(MPI_COMM_WORLD);
  return finish();
}
