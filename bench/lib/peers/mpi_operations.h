/* The measured operations over MPI: each adds up the ranks' tensors in place. */
#pragma once

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlockElements = 256, kRingPieceElements = 64 * 1024 };

static int rank, ranks;

static void* allocate(size_t bytes) {
  void* memory = malloc(bytes > 0 ? bytes : 1);
  if (memory == NULL) {
    fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return memory;
}

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

static void add(float* sum, const float* more, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += more[i];
}

static void all_reduce(float* tensor, size_t count) {
  MPI_Allreduce(MPI_IN_PLACE, tensor, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

typedef struct {
  float* begin;
  size_t count;
} Chunk;

static Chunk chunk_of(float* tensor, size_t count, int index) {
  const size_t begin = count * (size_t)index / (size_t)ranks;
  const size_t end = count * (size_t)(index + 1) / (size_t)ranks;
  return (Chunk){tensor + begin, end - begin};
}

/* Sends `out` to the right while `in` comes from the left, in pieces; adds them to those of `in` if
 * there is memory for a piece. Chunks have up to `longest` elements: all ranks need as many steps.
 */
static void shift(Chunk out, Chunk in, size_t longest, float* piece) {
  const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  for (size_t at = 0; at < longest; at += kRingPieceElements) {
    const size_t sent = at < out.count ? smaller(kRingPieceElements, out.count - at) : 0;
    const size_t received = at < in.count ? smaller(kRingPieceElements, in.count - at) : 0;
    float* to = piece != NULL ? piece : in.begin + at;
    MPI_Sendrecv(out.begin + at, (int)sent, MPI_FLOAT, right, 0, to, (int)received, MPI_FLOAT, left,
                 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (piece != NULL) add(in.begin + at, piece, received);
  }
}

/* Reduce-scatter and all-gather around the ring (Patarasuk and Yuan, 2009). */
static void ring(float* tensor, size_t count) {
  float* piece = allocate(sizeof(float) * kRingPieceElements);
  const size_t longest = (count + (size_t)ranks - 1) / (size_t)ranks;
  for (int step = 0; step < 2 * (ranks - 1); ++step) {
    const int index = (rank - step + 2 * ranks) % ranks;
    const Chunk out = chunk_of(tensor, count, index);
    const Chunk in = chunk_of(tensor, count, (index + ranks - 1) % ranks);
    shift(out, in, longest, step < ranks - 1 ? piece : NULL);
  }
  free(piece);
}

static size_t block_count(size_t count) {
  return (count + kBlockElements - 1) / kBlockElements;
}

static size_t elements_of(size_t count, size_t block) {
  return smaller(kBlockElements, count - block * kBlockElements);
}

static int is_zero(const float* values, size_t count) {
  int nonzero = 0;
  for (size_t i = 0; i < count; ++i) nonzero |= values[i] != 0;
  return !nonzero;
}

/* Non-zero blocks one after another, and their indices. */
typedef struct {
  int32_t* indices;
  float* values;
  int blocks;
} Sparse;

static Sparse allocate_sparse(size_t blocks) {
  return (Sparse){allocate(blocks * sizeof(int32_t)),
                  allocate(blocks * kBlockElements * sizeof(float)), 0};
}

static void free_sparse(Sparse sparse) {
  free(sparse.indices);
  free(sparse.values);
}

static Sparse compress(const float* tensor, size_t count) {
  Sparse own = allocate_sparse(block_count(count));
  for (size_t block = 0; block < block_count(count); ++block) {
    const float* values = tensor + block * kBlockElements;
    const size_t elements = elements_of(count, block);
    if (is_zero(values, elements)) continue;
    memcpy(own.values + (size_t)own.blocks * kBlockElements, values, elements * sizeof(float));
    own.indices[own.blocks++] = (int32_t)block;
  }
  return own;
}

/* MPI counts in int, which is enough for the blocks: they travel as units of their own. */
static Sparse gather(Sparse own) {
  static MPI_Datatype block_type = MPI_DATATYPE_NULL;
  if (block_type == MPI_DATATYPE_NULL) {
    MPI_Type_contiguous(kBlockElements, MPI_FLOAT, &block_type);
    MPI_Type_commit(&block_type);
  }
  int* counts = allocate((size_t)ranks * sizeof(int));
  int* places = allocate((size_t)ranks * sizeof(int));
  MPI_Allgather(&own.blocks, 1, MPI_INT, counts, 1, MPI_INT, MPI_COMM_WORLD);
  int blocks = 0;
  for (int r = 0; r < ranks; ++r) {
    places[r] = blocks;
    blocks += counts[r];
  }
  Sparse all = allocate_sparse((size_t)blocks);
  all.blocks = blocks;
  MPI_Allgatherv(own.indices, own.blocks, MPI_INT32_T, all.indices, counts, places, MPI_INT32_T,
                 MPI_COMM_WORLD);
  MPI_Allgatherv(own.values, own.blocks, block_type, all.values, counts, places, block_type,
                 MPI_COMM_WORLD);
  free(counts);
  free(places);
  return all;
}

static float* place_of(float* tensor, Sparse sparse, int i) {
  return tensor + (size_t)sparse.indices[i] * kBlockElements;
}

static void sparse_all_reduce(float* tensor, size_t count) {
  const Sparse own = compress(tensor, count);
  const Sparse all = gather(own);
  for (int i = 0; i < own.blocks; ++i) /* all else is zero already */
    memset(place_of(tensor, own, i), 0, elements_of(count, (size_t)own.indices[i]) * sizeof(float));
  for (int i = 0; i < all.blocks; ++i)
    add(place_of(tensor, all, i), all.values + (size_t)i * kBlockElements,
        elements_of(count, (size_t)all.indices[i]));
  free_sparse(own);
  free_sparse(all);
}

typedef void AllReduce(float*, size_t);

static AllReduce* find(const char* name) {
  if (strcmp(name, "allreduce") == 0) return all_reduce;
  if (strcmp(name, "ring") == 0) return ring;
  if (strcmp(name, "sparse") == 0) return sparse_all_reduce;
  fprintf(stderr, "no operation is called '%s'\n", name);
  MPI_Abort(MPI_COMM_WORLD, 2);
  return NULL;
}
