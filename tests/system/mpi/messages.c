/* A rank in a collective continues to serve messages that it has begun: the others need these to
 * reach the same collective. */
#include "check.h"

enum { kCount = 2000000 };

static const int everyone[] = {0, 1, 2, 3};

int main(void) {
  start();
  int* const message = memory(kCount * sizeof(int));
  for (int round = 0; round < 3; ++round) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) {
      for (int i = 0; i < kCount; ++i) message[i] = i + round;
      MPI_Isend(message, kCount, MPI_INT, 1, round, MPI_COMM_WORLD, &request);
    }
    if (rank == 1) {
      MPI_Recv(message, kCount, MPI_INT, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      for (int i = 0; i < kCount; ++i) check("the message is whole", message[i] == i + round);
    }
    check_sum("the sum after it", MPI_COMM_WORLD, everyone, ranks, 2000);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  free(message);
  return finish();
}
