/* MPI_Iallreduce and threads, with MPI_THREAD_MULTIPLE. */
#include <pthread.h>

#include "check.h"

enum { kCount = 3000, kRequests = 6, kRounds = 20 };

static const int everyone[] = {0, 1, 2, 3};

static void fill(long* out, int of, int request) {
  for (size_t i = 0; i < kCount; ++i) out[i] = (long)(bits(of, i) >> 8) + request;
}

static void check_result(const long* sum, int request) {
  long* const expected = memory(kCount * sizeof(long));
  long* const more = memory(kCount * sizeof(long));
  for (int of = 0; of < ranks; ++of) {
    fill(more, of, request);
    for (int i = 0; i < kCount; ++i) expected[i] += more[i];
  }
  check_bytes("a request's sum", sum, expected, kCount * sizeof(long));
  free(expected);
  free(more);
}

static void check_many_at_once(void) {
  long* sums[kRequests];
  MPI_Request requests[kRequests];
  for (int i = 0; i < kRequests; ++i) {
    sums[i] = memory(kCount * sizeof(long));
    fill(sums[i], rank, i);
    MPI_Iallreduce(MPI_IN_PLACE, sums[i], kCount, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &requests[i]);
  }
  for (int left = kRequests; left > 0; --left) {
    int which;
    MPI_Waitany(kRequests, requests, &which, MPI_STATUS_IGNORE);
    check("the request is done", requests[which] == MPI_REQUEST_NULL);
  }
  for (int i = 0; i < kRequests; ++i) {
    check_result(sums[i], i);
    free(sums[i]);
  }
}

/* It waits for no other rank: the last starts only when the others have sent that they are done. */
static void check_start_returns_at_once(MPI_Comm comm) {
  long own[kCount];
  long sum[kCount];
  fill(own, rank, 0);
  MPI_Request request;
  const int last = ranks - 1;
  for (int of = 0; of < last && rank == last; ++of)
    MPI_Recv(NULL, 0, MPI_INT, of, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Iallreduce(own, sum, kCount, MPI_LONG, MPI_SUM, comm, &request);
  if (rank != last) MPI_Send(NULL, 0, MPI_INT, last, 5, MPI_COMM_WORLD);
  int done = 0;
  MPI_Status status;
  const double deadline = MPI_Wtime() + 60;
  while (!done && MPI_Wtime() < deadline) MPI_Test(&request, &done, &status);
  check("a request that is tested ends", done);
  check_result(sum, 0);
}

/* Once before the communicator's job is made, and once after that. */
static void check_copy(void) {
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  check_start_returns_at_once(copy);
  check_sum("a copy", copy, everyone, ranks, kCount);
  check_start_returns_at_once(copy);
  MPI_Comm_free(&copy);
}

/* Open MPI 4.1.4 itself fails at this. */
static void check_freed_before_it_is_done(void) {
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  check_sum("a copy", copy, everyone, ranks, kCount);
  long* const sum = memory(kCount * sizeof(long));
  fill(sum, rank, 3);
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, sum, kCount, MPI_LONG, MPI_SUM, copy, &request);
  MPI_Comm_free(&copy);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  check_result(sum, 3);
  free(sum);
}

typedef struct Sums {
  MPI_Comm comm;
  int wrong;
} Sums;

static void* sum_in_thread(void* argument) {
  Sums* const sums = argument;
  int* const numbers = memory(kCount * sizeof(int));
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kCount; ++i) numbers[i] = rank + i + round;
    MPI_Allreduce(MPI_IN_PLACE, numbers, kCount, MPI_INT, MPI_SUM, sums->comm);
    for (int i = 0; i < kCount; ++i)
      sums->wrong += numbers[i] != ranks * (ranks - 1) / 2 + ranks * (i + round);
  }
  free(numbers);
  return NULL;
}

/* Each has a communicator, whose first collective makes its job, in any order among the ranks. */
static void check_threads(void) {
  enum { kThreads = 3 };
  Sums sums[kThreads] = {0};
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &sums[i].comm);
  for (int i = 0; i < kThreads; ++i)
    pthread_create(&threads[i], NULL, sum_in_thread, &sums[(i + rank) % kThreads]);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < kThreads; ++i) {
    check("a thread's sums are right", sums[i].wrong == 0);
    MPI_Comm_free(&sums[i].comm);
  }
}

/* `requests multiple | serialized | freed-early` */
int main(int argc, char** argv) {
  const char* const what = argv[1];
  const int is_serialized = strcmp(what, "serialized") == 0;
  const int required = is_serialized ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
  int provided;
  MPI_Init_thread(&argc, &argv, required, &provided);
  know_the_world();
  check("the level is as required", provided == required);
  if (strcmp(what, "freed-early") == 0) {
    check_freed_before_it_is_done();
  } else {
    check_many_at_once();
    check_start_returns_at_once(MPI_COMM_WORLD);
  }
  if (strcmp(what, "multiple") == 0) {
    check_copy();
    check_threads();
  }
  return finish();
}
