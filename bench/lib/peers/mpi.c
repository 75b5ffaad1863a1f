/* A rank of the peers over MPI: Open MPI's own AllReduce, a ring AllReduce of dense data, and a
 * sparse AllReduce by AllGather, as users write them. It sums fp32 in place, as requests over a
 * socket say: see ../ranks.py. */
#include <limits.h>
#include <malloc.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mpi_tensors.h"

static double run_once(AllReduce* operation, float* tensor, const float* input, size_t count) {
  memcpy(tensor, input, count * sizeof(float));
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  operation(tensor, count);
  const double seconds = MPI_Wtime() - start;
  MPI_Barrier(MPI_COMM_WORLD); /* no rank prepares its next run before all end this one */
  return seconds;
}

static void serve(const Request* request, FILE* answers) {
  float* input = zeros(request->count);
  add_tensor_of(rank, request, input);
  float* tensor = zeros(request->count);
  AllReduce* operation = find(request->operation);
  for (int run = 0; run < request->warmup + request->iterations; ++run) {
    const double seconds = run_once(operation, tensor, input, request->count);
    if (run >= request->warmup) fprintf(answers, "%.3f ", seconds * 1e6);
  }
  fprintf(answers, "wrong %zu\n", request->check ? count_wrong(tensor, request) : 0);
  fflush(answers);
  free(input);
  free(tensor);
  malloc_trim(0);
}

static int connect_to(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (connect(fd, (struct sockaddr*)&address, sizeof address) != 0) {
    perror(path);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return fd;
}

static int read_request(FILE* requests, Request* r) {
  return fscanf(requests, "%31s %zu %zu %7s %llu %d %d %d", r->operation, &r->count, &r->nonzero,
                r->overlap, &r->seed, &r->warmup, &r->iterations, &r->check) == 8;
}

int main(int argc, char** argv) {
  /* Memory that was touched is kept for the next iteration, which then has no page faults. */
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 2) {
    fprintf(stderr, "usage: mpi SOCKET\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int driver = connect_to(argv[1]);
  FILE* requests = fdopen(driver, "r");
  FILE* answers = fdopen(dup(driver), "w");
  fprintf(answers, "%d\n", rank);
  fflush(answers);
  for (Request request; read_request(requests, &request);) serve(&request, answers);
  MPI_Finalize();
}
