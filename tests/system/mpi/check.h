/* What the rank programs share: numbers that every rank can compute for every other, comparisons
 * bit for bit, and the last line of rank 0, which does not depend on the library that served the
 * calls. */
#ifndef SLUICE_TESTS_MPI_CHECK_H
#define SLUICE_TESTS_MPI_CHECK_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static uint64_t digest;

static inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Bits of element `i` of rank `of`; whole blocks of each rank are zero. */
static inline uint64_t bits(int of, size_t i) {
  return (i / 300 + (size_t)of) % 3 == 0 ? 0 : mixed(((uint64_t)of << 40) + i + 1);
}

static inline void* memory(size_t bytes) {
  void* const result = calloc(bytes ? bytes : 1, 1);
  if (result == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  return result;
}

static inline void check_bytes(const char* what, const void* got, const void* expected,
                               size_t bytes) {
  const unsigned char* const a = got;
  const unsigned char* const b = expected;
  for (size_t i = 0; i < bytes; ++i) {
    if (a[i] != b[i]) {
      fprintf(stderr, "rank %d: %s: byte %zu of %zu is %d, %d expected\n", rank, what, i, bytes,
              a[i], b[i]);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    digest = mixed(digest + a[i] + 1);
  }
}

static inline void check(const char* what, int is_so) {
  if (is_so) return;
  fprintf(stderr, "rank %d: not so: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static inline void know_the_world(void) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static inline void start(void) {
  MPI_Init(NULL, NULL);
  know_the_world();
}

static inline int finish(void) {
  if (rank == 0) printf("digest %016llx\n", (unsigned long long)digest);
  return MPI_Finalize();
}

/* An MPI_Allreduce of ints on a communicator whose ranks have these numbers in MPI_COMM_WORLD. */
static inline void check_sum(const char* what, MPI_Comm comm, const int* members, int size,
                             size_t count) {
  int* const own = memory(count * sizeof(int));
  int* const sum = memory(count * sizeof(int));
  int* const expected = memory(count * sizeof(int));
  for (size_t i = 0; i < count; ++i) {
    own[i] = (int)(bits(rank, i) & 0xffff);
    for (int member = 0; member < size; ++member)
      expected[i] += (int)(bits(members[member], i) & 0xffff);
  }
  MPI_Allreduce(own, sum, (int)count, MPI_INT, MPI_SUM, comm);
  check_bytes(what, sum, expected, count * sizeof(int));
  free(own);
  free(sum);
  free(expected);
}

#endif
