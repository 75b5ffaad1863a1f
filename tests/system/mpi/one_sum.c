/* One sum, over all ranks. */
#include "check.h"

static const int everyone[] = {0, 1, 2, 3};

int main(void) {
  start();
  check_sum("the sum", MPI_COMM_WORLD, everyone, ranks, 5000);
  return finish();
}
