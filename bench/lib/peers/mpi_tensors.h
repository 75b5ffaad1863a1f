/* The tensors of the ranks, and their sum. */
#pragma once

#include "mpi_operations.h"

static uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/* Chooses `nonzero` of the blocks: the first ones of a random order. */
static void mark_blocks(unsigned char* marks, size_t blocks, size_t nonzero, uint64_t key) {
  uint32_t* order = allocate(blocks * sizeof(uint32_t));
  memset(marks, 0, blocks);
  for (size_t i = 0; i < blocks; ++i) order[i] = (uint32_t)i;
  for (size_t i = 0; i < nonzero; ++i) {
    const size_t j = i + mix(key + i) % (blocks - i);
    const uint32_t chosen = order[j];
    order[j] = order[i];
    marks[chosen] = 1;
  }
  free(order);
}

typedef struct {
  char operation[32], overlap[8];
  size_t count, nonzero;
  unsigned long long seed;
  int warmup, iterations, check;
} Request;

static uint64_t key_of(const Request* request, int of_rank) {
  const int alike = strcmp(request->overlap, "all") == 0;
  return mix(request->seed * 1000 + (uint64_t)(alike ? 0 : of_rank)) >> 1;
}

/* Small whole numbers, so that sums are exact in any order. */
static float value_of(int of_rank, size_t i) {
  return (float)(1 + (i + 3 * (size_t)of_rank) % 7);
}

/* Adds rank `of_rank`'s tensor to `tensor`. */
static void add_tensor_of(int of_rank, const Request* request, float* tensor) {
  const size_t blocks = block_count(request->count);
  unsigned char* marks = allocate(blocks);
  mark_blocks(marks, blocks, request->nonzero, key_of(request, of_rank));
  for (size_t i = 0; i < request->count; ++i)
    if (marks[i / kBlockElements]) tensor[i] += value_of(of_rank, i);
  free(marks);
}

static float* zeros(size_t count) {
  float* tensor = allocate(count * sizeof(float));
  memset(tensor, 0, count * sizeof(float));
  return tensor;
}

static size_t count_wrong(const float* tensor, const Request* request) {
  float* expected = zeros(request->count);
  for (int r = 0; r < ranks; ++r) add_tensor_of(r, request, expected);
  size_t wrong = 0;
  for (size_t i = 0; i < request->count; ++i) wrong += tensor[i] != expected[i];
  free(expected);
  return wrong;
}
