/* sluice.h, one rank of a job: every function, its errors, and the sizes and values that programs
 * compiled with this header rely on for ever. It prints nothing if all is right. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sluice/sluice.h>

/* ---- the binary interface ------------------------------------------------------------------ */
#define AT(type, member, offset) \
  _Static_assert(offsetof(type, member) == (offset), #type "." #member " has moved")
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define VALUE(name, value) _Static_assert((name) == (value), #name " has another value")

SIZE(sluice_error, 512);
AT(sluice_error, status, 0);
AT(sluice_error, rank, 4);
AT(sluice_error, op, 8);
AT(sluice_error, last_heard_ms, 16);
AT(sluice_error, message, 24);
SIZE(sluice_reduce_options, 56);
AT(sluice_reduce_options, size, 0);
AT(sluice_reduce_options, reduction, 8);
AT(sluice_reduce_options, nonzero_blocks, 16);
AT(sluice_reduce_options, nonzero_words, 24);
AT(sluice_reduce_options, tag, 32);
AT(sluice_reduce_options, block_elements, 40);
AT(sluice_reduce_options, encoding, 42);
AT(sluice_reduce_options, rounding_seed, 48);
SIZE(sluice_block_compression, 64);
AT(sluice_block_compression, size, 0);
AT(sluice_block_compression, gradients, 8);
AT(sluice_block_compression, residual, 16);
AT(sluice_block_compression, out, 24);
AT(sluice_block_compression, count, 32);
AT(sluice_block_compression, sent_blocks, 40);
AT(sluice_block_compression, sent_words, 48);
AT(sluice_block_compression, block_elements, 56);
AT(sluice_block_compression, divisor, 60);
SIZE(sluice_sparse_tensor, 48);
AT(sluice_sparse_tensor, size, 0);
AT(sluice_sparse_tensor, keys, 8);
AT(sluice_sparse_tensor, values, 16);
AT(sluice_sparse_tensor, count, 24);
AT(sluice_sparse_tensor, row_elements, 32);
AT(sluice_sparse_tensor, type, 40);
SIZE(sluice_sparse_options, 56);
AT(sluice_sparse_options, size, 0);
AT(sluice_sparse_options, reduction, 8);
AT(sluice_sparse_options, combine, 12);
AT(sluice_sparse_options, threshold, 16);
AT(sluice_sparse_options, result_bytes, 24);
AT(sluice_sparse_options, tag, 32);
AT(sluice_sparse_options, encoding, 40);
AT(sluice_sparse_options, rounding_seed, 48);
SIZE(sluice_op_statistics, 72);
AT(sluice_op_statistics, duration_ns, 0);
AT(sluice_op_statistics, blocks, 8);
AT(sluice_op_statistics, blocks_sent, 16);
AT(sluice_op_statistics, blocks_received, 24);
AT(sluice_op_statistics, packets_sent, 32);
AT(sluice_op_statistics, packets_received, 40);
AT(sluice_op_statistics, bytes_sent, 48);
AT(sluice_op_statistics, bytes_received, 56);
AT(sluice_op_statistics, retransmissions, 64);
SIZE(sluice_job_statistics, 88);
AT(sluice_job_statistics, ops_completed, 0);
AT(sluice_job_statistics, ops_failed, 8);
AT(sluice_job_statistics, ops_pending, 16);
AT(sluice_job_statistics, packets_sent, 24);
AT(sluice_job_statistics, packets_received, 32);
AT(sluice_job_statistics, packets_dropped, 40);
AT(sluice_job_statistics, retransmissions, 48);
AT(sluice_job_statistics, narrowed_by_loss, 56);
AT(sluice_job_statistics, narrowed_by_delay, 64);
AT(sluice_job_statistics, rejoins, 72);
AT(sluice_job_statistics, rounds_replayed, 80);
SIZE(sluice_status, 4);
VALUE(SLUICE_OK, 0);
VALUE(SLUICE_INVALID_ARGUMENT, 1);
VALUE(SLUICE_UNAVAILABLE, 2);
VALUE(SLUICE_AGGREGATOR_LOST, 3);
VALUE(SLUICE_WORKER_LOST, 4);
VALUE(SLUICE_FORMATION_FAILED, 5);
VALUE(SLUICE_OP_MISMATCH, 6);
VALUE(SLUICE_RANK_LEFT, 7);
VALUE(SLUICE_RANK_RESTARTED, 8);
VALUE(SLUICE_QUOTA, 9);
VALUE(SLUICE_ABORTED, 10);
VALUE(SLUICE_PROTOCOL, 11);
VALUE(SLUICE_TIMEOUT, 12);
VALUE(SLUICE_NOT_AUTHENTICATED, 13);
VALUE(SLUICE_OP_TIMED_OUT, 14);
SIZE(sluice_element_type, 4);
VALUE(SLUICE_FLOAT32, 1);
VALUE(SLUICE_FLOAT64, 2);
VALUE(SLUICE_FLOAT16, 3);
VALUE(SLUICE_BFLOAT16, 4);
VALUE(SLUICE_INT32, 5);
VALUE(SLUICE_INT64, 6);
VALUE(SLUICE_INT8, 7);
VALUE(SLUICE_UINT8, 8);
VALUE(SLUICE_INT16, 9);
SIZE(sluice_reduction, 4);
VALUE(SLUICE_SUM, 1);
VALUE(SLUICE_MIN, 2);
VALUE(SLUICE_MAX, 3);
VALUE(SLUICE_AVERAGE, 4);
VALUE(SLUICE_PRODUCT, 5);
VALUE(SLUICE_BIT_AND, 6);
VALUE(SLUICE_BIT_OR, 7);
VALUE(SLUICE_BIT_XOR, 8);

/* ---- checks -------------------------------------------------------------------------------- */
static sluice_error error;

static void check(int right, int line, const char* what) {
  if (right) return;
  fprintf(stderr, "c_api, line %d: not so: %s\n  the last error: %s\n", line, what, error.message);
  exit(1);
}
#define CHECK(condition) check((condition) != 0, __LINE__, #condition)

/* Checks that a call is refused, with a message that contains `part`. */
static void refused(sluice_status status, sluice_status expected, const char* part, int line) {
  check(status == expected, line, sluice_status_name(status));
  check(error.status == status, line, "the error's status");
  check(strstr(error.message, part) != NULL, line, part);
}
#define REFUSED(call, status, part) refused(call, status, part, __LINE__)

static void names(void) {
  CHECK(strchr(sluice_version(), '.') != NULL);
  CHECK(strlen(sluice_build()) > 0);
  CHECK(strcmp(sluice_status_name(SLUICE_OK), "ok") == 0);
  CHECK(strcmp(sluice_status_name(SLUICE_WORKER_LOST), "worker lost") == 0);
  CHECK(strcmp(sluice_status_name((sluice_status)99), "unknown") == 0);
  CHECK(strcmp(sluice_status_name((sluice_status)65537), "unknown") == 0);
  for (int type = SLUICE_FLOAT32; type <= SLUICE_INT16; ++type) {
    CHECK(sluice_element_bytes((sluice_element_type)type) > 0);
    CHECK((int)sluice_parse_element_type(sluice_element_type_name((sluice_element_type)type)) ==
          type);
  }
  for (int r = SLUICE_SUM; r <= SLUICE_BIT_XOR; ++r)
    CHECK((int)sluice_parse_reduction(sluice_reduction_name((sluice_reduction)r)) == r);
  CHECK(sluice_element_bytes((sluice_element_type)10) == 0);
  CHECK(sluice_element_bytes((sluice_element_type)257) == 0);
  CHECK(strcmp(sluice_reduction_name((sluice_reduction)257), "?") == 0);
  CHECK((int)sluice_parse_element_type("quad") == 0);
  CHECK((int)sluice_parse_reduction(NULL) == 0);
}

static void settings(void) {
  sluice_options* options = sluice_options_create();
  CHECK(sluice_options_set(options, "job", "7", &error) == SLUICE_OK);
  CHECK(sluice_options_set(options, "aggregators", "10.0.0.1,10.0.0.2", &error) == SLUICE_OK);
  REFUSED(sluice_options_set(options, "rank", "256", &error), SLUICE_INVALID_ARGUMENT,
          "rank must be 0..255, not '256'");
  REFUSED(sluice_options_set(options, "join_timeout", "5", &error), SLUICE_INVALID_ARGUMENT,
          "did you mean 'join_timeout_ms'?");
  REFUSED(sluice_options_set(options, "aggregators", "10.0.0.1,nowhere:", &error),
          SLUICE_INVALID_ARGUMENT, "nowhere");
  REFUSED(sluice_options_set(options, "xyz", "", &error), SLUICE_INVALID_ARGUMENT, "world_size");
  REFUSED(sluice_options_set(options, "rank", NULL, &error), SLUICE_INVALID_ARGUMENT, "null");
  REFUSED(sluice_options_set(NULL, "rank", "0", &error), SLUICE_INVALID_ARGUMENT, "null");
  CHECK(sluice_options_set(options, "rank", "-1", NULL) == SLUICE_INVALID_ARGUMENT);
  CHECK(sluice_options_set(options, "job", "bert-large", &error) == SLUICE_OK);
  uint32_t id = 0;
  CHECK(sluice_job_id("bert-large", &id, &error) == SLUICE_OK && id == 108174750);
  CHECK(sluice_job_id("4294967295", &id, NULL) == SLUICE_OK && id == UINT32_MAX);
  REFUSED(sluice_job_id("no name", &id, &error), SLUICE_INVALID_ARGUMENT,
          "job must be 0..4294967295, or a name of 1..64 printable ASCII characters");
  REFUSED(sluice_job_id(NULL, &id, &error), SLUICE_INVALID_ARGUMENT, "name is null");
  REFUSED(sluice_job_id("x", NULL, &error), SLUICE_INVALID_ARGUMENT, "id is null");
  CHECK(id == UINT32_MAX);
  sluice_options_destroy(options);
}

/* A message that is cut ends with a whole character. */
static void long_message(void) {
  char value[2000];
  sluice_options* options = sluice_options_create();
  for (size_t i = 0; i + 2 < sizeof value; i += 2) memcpy(value + i, "\xc3\xa9", 3); /* é */
  REFUSED(sluice_options_set(options, "job", value, &error), SLUICE_INVALID_ARGUMENT, "job must");
  const size_t length = strlen(error.message);
  CHECK(length == sizeof error.message - 1 || length == sizeof error.message - 2);
  CHECK((unsigned char)error.message[length - 1] == 0xa9);
  sluice_options_destroy(options);
}

static void null_handles(void) {
  sluice_work* work = NULL;
  sluice_op_statistics cost;
  sluice_options_destroy(NULL);
  sluice_communicator_destroy(NULL);
  sluice_work_destroy(NULL);
  sluice_free(NULL);
  CHECK(sluice_context_close(NULL, &error) == SLUICE_OK);
  CHECK(sluice_communicator_rank(NULL) == -1);
  CHECK(sluice_communicator_world_size(NULL) == -1);
  CHECK(sluice_communicator_job_id(NULL) == 0);
  CHECK(sluice_block_elements(NULL, SLUICE_FLOAT32) == 0);
  CHECK(sluice_work_done(NULL) == -1 && sluice_work_progress(NULL) == -1);
  REFUSED(sluice_context_open(NULL, NULL, &error), SLUICE_INVALID_ARGUMENT, "options is null");
  REFUSED(sluice_communicator_join(NULL, NULL, NULL, &error), SLUICE_INVALID_ARGUMENT, "null");
  REFUSED(sluice_options_set_interrupt(NULL, NULL, &error), SLUICE_INVALID_ARGUMENT, "null");
  REFUSED(sluice_communicator_leave(NULL, &error), SLUICE_INVALID_ARGUMENT, "null");
  REFUSED(sluice_all_reduce(NULL, NULL, NULL, 0, SLUICE_INT32, NULL, &work, &error),
          SLUICE_INVALID_ARGUMENT, "communicator is null");
  REFUSED(sluice_barrier(NULL, &work, &error), SLUICE_INVALID_ARGUMENT, "null");
  REFUSED(sluice_work_wait(NULL, 0, &error), SLUICE_INVALID_ARGUMENT, "work is null");
  REFUSED(sluice_work_set_timeout(NULL, 1, &error), SLUICE_INVALID_ARGUMENT, "work is null");
  REFUSED(sluice_work_statistics(NULL, &cost, sizeof cost, &error), SLUICE_INVALID_ARGUMENT,
          "null");
}

/* ---- a job --------------------------------------------------------------------------------- */
#define COUNT 100000
#define STREAMS 8
static float tensor[COUNT], result[COUNT];

/* Rank r has r + 1 in all elements of every third block of so many elements; 0: as in the job. */
static void sums_with_bitmap(sluice_communicator* job, uint16_t block_elements) {
  const int rank = sluice_communicator_rank(job), ranks = sluice_communicator_world_size(job);
  const uint32_t block = sluice_op_block_elements(job, SLUICE_FLOAT32, block_elements);
  CHECK(block == (block_elements ? block_elements : sluice_block_elements(job, SLUICE_FLOAT32)));
  const size_t blocks = (COUNT + block - 1) / block;
  uint64_t bitmap[(COUNT + 63) / 64] = {0};
  memset(tensor, 0, sizeof tensor);
  for (size_t i = 0; i < COUNT; ++i)
    if (i / block % 3 == 0) tensor[i] = (float)(rank + 1);
  for (size_t b = 0; b < blocks; b += 3) bitmap[b / 64] |= (uint64_t)1 << (b % 64);

  sluice_reduce_options options = SLUICE_REDUCE_OPTIONS_INIT;
  options.reduction = SLUICE_AVERAGE;
  options.nonzero_blocks = bitmap;
  options.nonzero_words = (blocks + 63) / 64;
  options.tag = 5;
  options.block_elements = block_elements;
  sluice_work* work = NULL;
  CHECK(sluice_all_reduce(job, tensor, result, COUNT, SLUICE_FLOAT32, &options, &work, &error) ==
        SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(work, 0, &error) == SLUICE_OK);
  CHECK(sluice_work_done(work) == 1);
  const float average = (float)(ranks + 1) / 2;
  for (size_t i = 0; i < COUNT; ++i) CHECK(result[i] == (i / block % 3 == 0 ? average : 0));
  sluice_op_statistics cost;
  CHECK(sluice_work_statistics(work, &cost, sizeof cost, &error) == SLUICE_OK);
  CHECK(cost.blocks == blocks);
  CHECK(cost.blocks_sent == (blocks + 2) / 3 && cost.blocks_received == cost.blocks_sent);
  CHECK(cost.bytes_sent > cost.blocks_sent * block && cost.bytes_received > 0);
  CHECK(cost.packets_sent > 0 && cost.packets_received > 0 && cost.duration_ns > 0);
  REFUSED(sluice_work_statistics(work, &cost, 8, &error), SLUICE_INVALID_ARGUMENT, "8 bytes, 72");
  REFUSED(sluice_work_statistics(work, NULL, sizeof cost, &error), SLUICE_INVALID_ARGUMENT, "null");
  sluice_work_destroy(work);
}

static void await(sluice_work* work) {
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  sluice_work_destroy(work);
}

/* A program built with the first version of the header passes a struct without block_elements. */
static void older_options(sluice_communicator* job) {
  sluice_reduce_options options = SLUICE_REDUCE_OPTIONS_INIT;
  options.size = offsetof(sluice_reduce_options, block_elements);
  options.block_elements = 65535; /* behind the caller's struct: must not be read */
  for (size_t i = 0; i < COUNT; ++i) tensor[i] = 1;
  sluice_work* work = NULL;
  CHECK(sluice_all_reduce(job, tensor, tensor, COUNT, SLUICE_FLOAT32, &options, &work, &error) ==
        SLUICE_OK);
  await(work);
  for (size_t i = 0; i < COUNT; ++i) CHECK(tensor[i] == (float)sluice_communicator_world_size(job));
}

/* Every rank's part is its number, rank + 1 times; then all get the last one's part. */
static void moves(sluice_communicator* job) {
  const int rank = sluice_communicator_rank(job), ranks = sluice_communicator_world_size(job);
  uint64_t counts[256];
  int16_t part[256], all[256 * 257 / 2];
  sluice_work* work = NULL;
  for (int r = 0; r < ranks; ++r) counts[r] = (uint64_t)r + 1;
  for (int i = 0; i <= rank; ++i) part[i] = (int16_t)rank;
  CHECK(sluice_all_gather(job, part, all, counts, (size_t)ranks, SLUICE_INT16, 3, &work, &error) ==
        SLUICE_OK);
  await(work);
  for (int r = 0, at = 0; r < ranks; ++r)
    for (int i = 0; i <= r; ++i) CHECK(all[at++] == r);

  const uint16_t root = (uint16_t)(ranks - 1);
  CHECK(sluice_broadcast(job, part, 1, SLUICE_INT16, root, 0, &work, &error) == SLUICE_OK);
  await(work);
  CHECK(part[0] == ranks - 1);
  REFUSED(sluice_broadcast(job, part, 1, SLUICE_INT16, 256, 0, &work, &error),
          SLUICE_INVALID_ARGUMENT, "root 256");
  REFUSED(sluice_all_gather(job, part, all, NULL, 1, SLUICE_INT16, 0, &work, &error),
          SLUICE_INVALID_ARGUMENT, "counts is null");
  REFUSED(sluice_all_gather(job, part, all, counts, 300, SLUICE_INT16, 0, &work, &error),
          SLUICE_INVALID_ARGUMENT, "300 counts");
}

/* Rank r has r + 1 everywhere: what is reduced, gathered, scattered and exchanged. */
static void parts(sluice_communicator* job) {
  const int rank = sluice_communicator_rank(job), ranks = sluice_communicator_world_size(job);
  const uint16_t root = (uint16_t)(ranks - 1);
  uint64_t ones[256];
  uint64_t pairs[64 * 64];
  int32_t own[256], all[256], part = -1;
  sluice_work* work = NULL;
  CHECK(ranks <= 64);
  for (int r = 0; r < ranks; ++r) {
    ones[r] = 1;
    own[r] = rank + 1;
  }
  for (int i = 0; i < ranks * ranks; ++i) pairs[i] = 1;

  CHECK(sluice_reduce(job, own, all, (uint64_t)ranks, SLUICE_INT32, root, NULL, &work, &error) ==
        SLUICE_OK);
  await(work);
  if (rank == root) CHECK(all[0] == ranks * (ranks + 1) / 2 && all[ranks - 1] == all[0]);

  CHECK(sluice_reduce_scatter(job, own, &part, ones, (size_t)ranks, SLUICE_INT32, NULL, &work,
                              &error) == SLUICE_OK);
  await(work);
  CHECK(part == ranks * (ranks + 1) / 2);

  CHECK(sluice_gather(job, own, all, ones, (size_t)ranks, SLUICE_INT32, root, 1, &work, &error) ==
        SLUICE_OK);
  await(work);
  if (rank == root)
    for (int r = 0; r < ranks; ++r) CHECK(all[r] == r + 1);

  CHECK(sluice_scatter(job, all, &part, ones, (size_t)ranks, SLUICE_INT32, root, 2, &work,
                       &error) == SLUICE_OK);
  await(work);
  CHECK(part == rank + 1);

  CHECK(sluice_all_to_all(job, own, all, pairs, (size_t)(ranks * ranks), SLUICE_INT32, 3, &work,
                          &error) == SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  for (int r = 0; r < ranks; ++r) CHECK(all[r] == r + 1);
  size_t stragglers = 1;
  CHECK(sluice_work_stragglers(work, NULL, 0, &stragglers, &error) == SLUICE_OK);
  CHECK(stragglers == 0);
  REFUSED(sluice_work_stragglers(work, NULL, 1, &stragglers, &error), SLUICE_INVALID_ARGUMENT,
          "ranks is null");
  sluice_work_destroy(work);
}

/* Rank r sends r to every other rank, and receives what they send. */
static void messages(sluice_communicator* job) {
  const int rank = sluice_communicator_rank(job), ranks = sluice_communicator_world_size(job);
  int64_t received[64];
  sluice_work *sends[64], *receives[64], *work = NULL;
  const int64_t own = rank;
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    CHECK(sluice_send(job, &own, 1, SLUICE_INT64, (uint16_t)r, 9, &sends[r], &error) == SLUICE_OK);
  }
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    CHECK(sluice_recv(job, &received[r], 1, SLUICE_INT64, (uint16_t)r, 9, &receives[r], &error) ==
          SLUICE_OK);
  }
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    await(sends[r]);
    await(receives[r]);
    CHECK(received[r] == r);
  }
  REFUSED(sluice_send(job, &own, 1, SLUICE_INT64, (uint16_t)rank, 0, &work, &error),
          SLUICE_INVALID_ARGUMENT, "send: rank");
  REFUSED(sluice_recv(job, received, 1, SLUICE_INT64, 300, 0, &work, &error),
          SLUICE_INVALID_ARGUMENT, "recv: rank 300");
  if (ranks > 1)
    REFUSED(sluice_send(job, NULL, 1, SLUICE_INT64, (uint16_t)(rank == 0), 0, &work, &error),
            SLUICE_INVALID_ARGUMENT, "send: a tensor is null");
  CHECK(work == NULL);
}

/* Numbers that would be a valid rank if they were cut to 16 bits. */
static void roots_beyond_16_bits(sluice_communicator* job) {
  const int numbers[] = {65536, -65536, -1};
  const char* const words[] = {" 65536;", " -65536;", " -1;"};
  const uint64_t counts[256] = {0};
  const size_t ranks = (size_t)sluice_communicator_world_size(job);
  int16_t x[1] = {0}, y[1] = {0};
  sluice_work* work = NULL;
  for (int i = 0; i < 3; ++i) {
    const int root = numbers[i];
    REFUSED(sluice_broadcast(job, x, 1, SLUICE_INT16, root, 0, &work, &error),
            SLUICE_INVALID_ARGUMENT, words[i]);
    REFUSED(sluice_reduce(job, x, y, 1, SLUICE_INT16, root, NULL, &work, &error),
            SLUICE_INVALID_ARGUMENT, words[i]);
    REFUSED(sluice_gather(job, x, y, counts, ranks, SLUICE_INT16, root, 0, &work, &error),
            SLUICE_INVALID_ARGUMENT, words[i]);
    REFUSED(sluice_scatter(job, x, y, counts, ranks, SLUICE_INT16, root, 0, &work, &error),
            SLUICE_INVALID_ARGUMENT, words[i]);
    REFUSED(sluice_send(job, x, 1, SLUICE_INT16, root, 0, &work, &error), SLUICE_INVALID_ARGUMENT,
            words[i]);
    REFUSED(sluice_recv(job, x, 1, SLUICE_INT16, root, 0, &work, &error), SLUICE_INVALID_ARGUMENT,
            words[i]);
  }
}

/* Rank r has the keys 1, 5 + r and 100 with the rows (r + 1, 0), (8, 8) and (40, -r). */
#define SPARSE_BOUND 101
static uint64_t sparse_keys[3];
static float sparse_values[6];
static sluice_sparse_tensor sparse_pairs(sluice_communicator* job) {
  const int rank = sluice_communicator_rank(job);
  const float values[6] = {(float)(rank + 1), 0, 8, 8, 40, (float)-rank};
  sluice_sparse_tensor pairs = SLUICE_SPARSE_TENSOR_INIT;
  memcpy(sparse_values, values, sizeof values);
  sparse_keys[0] = 1;
  sparse_keys[1] = 5 + (uint64_t)rank;
  sparse_keys[2] = 100;
  pairs.keys = sparse_keys;
  pairs.values = sparse_values;
  pairs.count = 3;
  pairs.row_elements = 2;
  return pairs;
}

static void sparse_sums(sluice_communicator* job) {
  const int ranks = sluice_communicator_world_size(job);
  const float of_ranks = (float)(ranks * (ranks + 1) / 2); /* 1 + 2 + ... */
  const sluice_sparse_tensor pairs = sparse_pairs(job);
  sluice_sparse_options options = SLUICE_SPARSE_OPTIONS_INIT;
  sluice_work* work = NULL;
  const uint64_t* keys = NULL;
  const void* values = NULL;
  uint64_t count = 0, rejected[4] = {9, 9, 9, 9};
  CHECK(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, NULL, &work, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  CHECK(sluice_work_sparse_sums(work, SLUICE_FLOAT32, &keys, &values, &count, &error) == SLUICE_OK);
  const float* sums = values;
  CHECK(count == (uint64_t)ranks + 2 && keys[0] == 1 && sums[0] == of_ranks && sums[1] == 0);
  for (int r = 0; r < ranks; ++r)
    CHECK(keys[1 + r] == 5 + (uint64_t)r && sums[2 + 2 * r] == 8 && sums[3 + 2 * r] == 8);
  sums += 2 * ranks + 2;
  CHECK(keys[1 + ranks] == 100 && sums[0] == 40 * (float)ranks &&
        sums[1] == (float)ranks - of_ranks);
  float rows[2 * SPARSE_BOUND];
  memset(rows, 1, sizeof rows);
  CHECK(sluice_work_sparse_dense(work, rows, 2 * SPARSE_BOUND, SLUICE_FLOAT32, &error) ==
        SLUICE_OK);
  CHECK(rows[0] == 0 && rows[2] == of_ranks && rows[3] == 0 && rows[10] == 8 && rows[11] == 8);
  CHECK(rows[200] == 40 * (float)ranks && rows[199] == 0);
  REFUSED(sluice_work_sparse_dense(work, rows, 7, SLUICE_FLOAT32, &error), SLUICE_INVALID_ARGUMENT,
          "the tensor has 7 elements");
  REFUSED(sluice_work_sparse_dense(work, NULL, 2 * SPARSE_BOUND, SLUICE_FLOAT32, &error),
          SLUICE_INVALID_ARGUMENT, "the tensor is null");
  CHECK(sluice_work_sparse_rejected(work, rejected, &error) == SLUICE_OK);
  CHECK(rejected[0] + rejected[1] + rejected[2] + rejected[3] == 0);
  REFUSED(sluice_work_sparse_sums(work, SLUICE_INT32, &keys, &values, &count, &error),
          SLUICE_INVALID_ARGUMENT, "are float, not int32");
  REFUSED(sluice_work_sparse_sums(work, SLUICE_FLOAT32, &keys, &values, NULL, &error),
          SLUICE_INVALID_ARGUMENT, "count is null");
  REFUSED(sluice_work_sparse_rejected(work, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "rejected is null");
  sluice_work_destroy(work);

  options.threshold = 30;
  options.tag = 4;
  CHECK(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, &options, &work, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  CHECK(sluice_work_sparse_sums(work, SLUICE_FLOAT32, &keys, NULL, &count, &error) == SLUICE_OK);
  CHECK(count == 1 && keys[0] == 100);
  CHECK(sluice_work_sparse_rejected(work, rejected, &error) == SLUICE_OK);
  CHECK(rejected[0] == 0 && rejected[1] == (uint64_t)ranks); /* 8 of 30 */
  CHECK(rejected[2] == (of_ranks >= 3.75F) && rejected[3] == (of_ranks < 3.75F));
  sluice_work_destroy(work);

  options.encoding = 5;
  REFUSED(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "the encoding 5 is none of sluice_encoding");
  options.encoding = SLUICE_ENCODING_FLOAT16;
  options.rounding_seed = 4;
  REFUSED(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "rounding_seed is 4");
  options.rounding_seed = 0;
  CHECK(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, &options, &work, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  CHECK(sluice_work_sparse_sums(work, SLUICE_FLOAT32, &keys, NULL, &count, &error) == SLUICE_OK);
  CHECK(count == 1 && keys[0] == 100);
  sluice_work_destroy(work);
}

/* Keys in any order; rank 2 has one of them three times, and rank 0 has none. */
static void sparse_sums_combined(sluice_communicator* job, sluice_work** kept) {
  static const uint64_t keys[4] = {7, 3, 7, 7};
  static const int64_t values[4] = {-1, 5, -2, -4};
  const int rank = sluice_communicator_rank(job), ranks = sluice_communicator_world_size(job);
  const uint64_t* found = NULL;
  const void* sums = NULL;
  uint64_t count = 9;
  sluice_sparse_tensor pairs = SLUICE_SPARSE_TENSOR_INIT;
  sluice_sparse_options options = SLUICE_SPARSE_OPTIONS_INIT;
  CHECK(pairs.row_elements == 1 && ranks <= 3);
  if (rank > 0) {
    pairs.keys = keys;
    pairs.values = values;
  }
  pairs.count = 2 * (uint64_t)rank;
  pairs.type = SLUICE_INT64;
  options.reduction = SLUICE_MIN;
  options.combine = 1;
  CHECK(sluice_sparse_all_reduce(job, &pairs, 8, &options, kept, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(*kept, SLUICE_FOREVER, &error) == SLUICE_OK);
  CHECK(sluice_work_sparse_sums(*kept, SLUICE_INT64, &found, &sums, &count, &error) == SLUICE_OK);
  if (ranks == 1) CHECK(count == 0);
  if (ranks == 3) {
    const int64_t* smallest = sums;
    CHECK(count == 2 && found[0] == 3 && found[1] == 7 && smallest[0] == 5 && smallest[1] == -4);
  }
}

static void sparse_sums_refused(sluice_communicator* job) {
  const uint64_t falling[3] = {3, 2, 1};
  const sluice_sparse_tensor good = sparse_pairs(job);
  sluice_sparse_tensor pairs = good;
  sluice_sparse_options options = SLUICE_SPARSE_OPTIONS_INIT;
  sluice_work* work = NULL;
  uint64_t count = 0;
#define SUM_REFUSED(part)                                                               \
  REFUSED(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, &options, &work, &error), \
          SLUICE_INVALID_ARGUMENT, part)
  pairs.keys = falling;
  SUM_REFUSED("key 1 is 2, less than the one before it");
  pairs.keys = NULL;
  SUM_REFUSED("keys is null");
  pairs = good;
  pairs.values = NULL;
  SUM_REFUSED("values are null");
  pairs = good;
  pairs.row_elements = 0;
  SUM_REFUSED("row_elements is 0");
  pairs = good;
  pairs.type = (sluice_element_type)10;
  SUM_REFUSED("type");
  pairs = good;
  pairs.reserved_0 = 1;
  SUM_REFUSED("reserved member must be 0");
  pairs.size = 0;
  SUM_REFUSED("tensor has 0 bytes, 48 expected");
  pairs = good;
  options.combine = 2;
  SUM_REFUSED("combine is 2; 0 or 1 expected");
  options.combine = 0;
  options.threshold = -1;
  SUM_REFUSED("threshold is -1");
  options.threshold = 0;
  options.reduction = (sluice_reduction)257;
  SUM_REFUSED("the reduction 257");
  options.size = 8;
  SUM_REFUSED("options has 8 bytes, 56 expected");
  REFUSED(sluice_sparse_all_reduce(job, &pairs, 100, NULL, &work, &error), SLUICE_INVALID_ARGUMENT,
          "the last key is 100; less than key_bound 100 expected");
  REFUSED(sluice_sparse_all_reduce(job, &pairs, 0, NULL, &work, &error), SLUICE_INVALID_ARGUMENT,
          "key_bound is 0");
  REFUSED(sluice_sparse_all_reduce(job, NULL, 1, NULL, &work, &error), SLUICE_INVALID_ARGUMENT,
          "tensor is null");
  REFUSED(sluice_sparse_all_reduce(job, &pairs, 1, NULL, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "work is null");
  CHECK(work == NULL);
  REFUSED(sluice_work_sparse_sums(NULL, SLUICE_INT8, NULL, NULL, &count, &error),
          SLUICE_INVALID_ARGUMENT, "work is null");
  CHECK(sluice_barrier(job, &work, &error) == SLUICE_OK);
  REFUSED(sluice_work_sparse_sums(work, SLUICE_INT8, NULL, NULL, &count, &error),
          SLUICE_INVALID_ARGUMENT, "no sparse sum");
  await(work);
}

/* A result above the bound of rank 0 fails only there, and the job continues. */
static void sparse_sums_bounded(sluice_communicator* job) {
  const int bounds = sluice_communicator_rank(job) == 0;
  const sluice_sparse_tensor pairs = sparse_pairs(job);
  sluice_sparse_options options = SLUICE_SPARSE_OPTIONS_INIT;
  sluice_work* work = NULL;
  uint64_t count = 0, rejected[4];
  if (bounds) options.result_bytes = 40; /* two pairs have 32 */
  CHECK(sluice_sparse_all_reduce(job, &pairs, SPARSE_BOUND, &options, &work, &error) == SLUICE_OK);
  const sluice_status ended = sluice_work_wait(work, SLUICE_FOREVER, &error);
  if (bounds) {
    REFUSED(ended, SLUICE_INVALID_ARGUMENT, "bytes allowed");
    REFUSED(sluice_work_sparse_sums(work, SLUICE_FLOAT32, NULL, NULL, &count, &error),
            SLUICE_INVALID_ARGUMENT, "bytes allowed");
    REFUSED(sluice_work_sparse_rejected(work, rejected, &error), SLUICE_INVALID_ARGUMENT,
            "bytes allowed");
  } else {
    CHECK(ended == SLUICE_OK);
  }
  sluice_work_destroy(work);
  CHECK(sluice_barrier(job, &work, &error) == SLUICE_OK);
  await(work);
}

/* A cancelled thread: it ends at the first call that waits. */
static int destroyed = 0;
static void* destroy(void* job) {
  pthread_cancel(pthread_self());
  sluice_communicator_destroy(job);
  destroyed = 1;
  pthread_testcancel();
  return NULL;
}
static void destroyed_by_a_cancelled_thread(sluice_communicator* job) {
  pthread_t thread;
  void* ended = NULL;
  CHECK(pthread_create(&thread, NULL, destroy, job) == 0);
  CHECK(pthread_join(thread, &ended) == 0);
  CHECK(destroyed == 1 && ended == PTHREAD_CANCELED);
}

static void sums_of_few_bits(sluice_communicator* job) {
  sluice_work* work = NULL;
  sluice_reduce_options options = SLUICE_REDUCE_OPTIONS_INIT;
  const float ranks = (float)sluice_communicator_world_size(job);
  for (int i = 0; i < 300; ++i) tensor[i] = (float)(i % 5 - 2);
  options.encoding = SLUICE_ENCODING_INT8;
  options.rounding_seed = 5;
  CHECK(sluice_all_reduce(job, tensor, tensor, 300, SLUICE_FLOAT32, &options, &work, &error) ==
        SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  for (int i = 0; i < 300; ++i) {
    const float off = tensor[i] - ranks * (float)(i % 5 - 2);
    CHECK(off <= 2 * 4 * ranks / 127 && off >= -2 * 4 * ranks / 127);
  }
  sluice_work_destroy(work);
}

static void bad_arguments(sluice_communicator* job) {
  sluice_work* work = NULL;
  sluice_reduce_options options = SLUICE_REDUCE_OPTIONS_INIT;
  options.reduction = (sluice_reduction)257;
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_FLOAT32, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "257");
  options.reduction = SLUICE_SUM;
  options.reserved_1 = 1;
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_FLOAT32, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "reserved members must be 0");
  options.reserved_1 = 0;
  options.encoding = 256 + SLUICE_ENCODING_INT8;
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_FLOAT32, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "encoding 266 is none of sluice_encoding");
  options.encoding = 256;
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_FLOAT32, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "encoding 256 is none of sluice_encoding");
  options.encoding = SLUICE_ENCODING_INT8;
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_INT32, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "int8");
  memset(&options, 0, sizeof options);
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_FLOAT32, &options, &work, &error),
          SLUICE_INVALID_ARGUMENT, "0 bytes, 56 expected");
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, (sluice_element_type)0, NULL, &work, &error),
          SLUICE_INVALID_ARGUMENT, "type");
  REFUSED(sluice_all_reduce(job, tensor, tensor + 1, 9, SLUICE_FLOAT32, NULL, &work, &error),
          SLUICE_INVALID_ARGUMENT, "overlap");
  REFUSED(sluice_all_reduce(job, tensor, tensor, 1, SLUICE_FLOAT32, NULL, NULL, &error),
          SLUICE_INVALID_ARGUMENT, "work is null");
  CHECK(work == NULL);
  CHECK(sluice_block_elements(job, (sluice_element_type)10) == 0);
}

/* Rank 0 polls while the others cannot have come: they wait for its message in another job. */
static void bounded_wait(sluice_communicator* job, sluice_communicator* word) {
  const int looks = sluice_communicator_rank(job) == 0 && sluice_communicator_world_size(job) > 1;
  const sluice_sparse_tensor nothing = SLUICE_SPARSE_TENSOR_INIT;
  sluice_work *barrier = NULL, *sums = NULL, *said = NULL;
  sluice_op_statistics cost;
  sluice_job_statistics all;
  uint64_t count = 0;
  CHECK(sluice_communicator_statistics(job, &all, sizeof all, &error) == SLUICE_OK);
  CHECK(all.ops_pending == 0 && all.ops_failed == 0 && all.ops_completed > 0);
  CHECK(all.packets_sent > 0 && all.packets_received > 0 && all.rejoins == 0);
  REFUSED(sluice_communicator_statistics(job, &all, 1, &error), SLUICE_INVALID_ARGUMENT, "1 bytes");
  if (looks) {
    size_t awaited = 0;
    uint16_t ranks[1] = {9};
    CHECK(sluice_barrier(job, &barrier, &error) == SLUICE_OK);
    CHECK(sluice_sparse_all_reduce(job, &nothing, 1, NULL, &sums, &error) == SLUICE_OK);
    REFUSED(sluice_work_wait(barrier, 1000000, &error), SLUICE_TIMEOUT, "1000000 ns");
    REFUSED(sluice_work_wait(barrier, INT64_MIN, &error), SLUICE_TIMEOUT, "after 0 ns");
    CHECK(sluice_work_done(barrier) == 0 && sluice_work_progress(barrier) == 0);
    CHECK(sluice_communicator_statistics(job, &all, sizeof all, &error) == SLUICE_OK);
    CHECK(all.ops_pending == 2);
    while (awaited == 0)
      CHECK(sluice_communicator_stragglers(job, ranks, 1, &awaited, &error) == SLUICE_OK);
    CHECK(ranks[0] == 1);
    REFUSED(sluice_work_statistics(barrier, &cost, sizeof cost, &error), SLUICE_INVALID_ARGUMENT,
            "not done");
    REFUSED(sluice_work_sparse_sums(sums, SLUICE_FLOAT32, NULL, NULL, &count, &error),
            SLUICE_INVALID_ARGUMENT, "not done");
  }
  CHECK(sluice_barrier(word, &said, &error) == SLUICE_OK);
  await(said);
  if (!looks) {
    CHECK(sluice_barrier(job, &barrier, &error) == SLUICE_OK);
    CHECK(sluice_sparse_all_reduce(job, &nothing, 1, NULL, &sums, &error) == SLUICE_OK);
  }
  await(barrier);
  await(sums);
}

/* Rank 0 joins no part; the others are in reverse in theirs, which outlives its parent. */
static void splits(sluice_context* context, sluice_communicator* job) {
  const int32_t rank = sluice_communicator_rank(job), ranks = sluice_communicator_world_size(job);
  sluice_communicator *twin = NULL, *part = NULL;
  sluice_work *work = NULL, *barrier = NULL;
  CHECK(sluice_duplicate(job, &work, &error) == SLUICE_OK);
  CHECK(sluice_communicator_join_split(context, work, &twin, &error) == SLUICE_OK);
  sluice_work_destroy(work);
  CHECK(sluice_communicator_rank(twin) == rank && sluice_communicator_world_size(twin) == ranks);
  CHECK(sluice_communicator_job_id(twin) != sluice_communicator_job_id(job));

  CHECK(sluice_split(twin, rank == 0 ? -1 : 7, -rank, &work, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
  sluice_communicator_destroy(twin);
  if (rank == 0) {
    REFUSED(sluice_communicator_join_split(context, work, &part, &error), SLUICE_INVALID_ARGUMENT,
            "color is negative");
    REFUSED(sluice_communicator_join_split(context, NULL, &part, &error), SLUICE_INVALID_ARGUMENT,
            "split is null");
    REFUSED(sluice_communicator_join_split(NULL, work, &part, &error), SLUICE_INVALID_ARGUMENT,
            "context is null");
    REFUSED(sluice_communicator_join_split(context, work, NULL, &error), SLUICE_INVALID_ARGUMENT,
            "communicator is null");
    REFUSED(sluice_split(NULL, 0, 0, &barrier, &error), SLUICE_INVALID_ARGUMENT, "null");
    REFUSED(sluice_duplicate(job, NULL, &error), SLUICE_INVALID_ARGUMENT, "work is null");
    CHECK(part == NULL && barrier == NULL);
  } else {
    CHECK(sluice_communicator_join_split(context, work, &part, &error) == SLUICE_OK);
    CHECK(sluice_communicator_rank(part) == ranks - 1 - rank);
    CHECK(sluice_communicator_world_size(part) == ranks - 1);
    CHECK(sluice_barrier(part, &barrier, &error) == SLUICE_OK);
    await(barrier);
    REFUSED(sluice_context_close(context, &error), SLUICE_INVALID_ARGUMENT,
            "3 of its communicators");
  }
  sluice_communicator_destroy(part);
  sluice_work_destroy(work);
  CHECK(sluice_barrier(job, &barrier, &error) == SLUICE_OK);
  REFUSED(sluice_communicator_join_split(context, barrier, &part, &error), SLUICE_INVALID_ARGUMENT,
          "the op is no split");
  await(barrier);
}

/* Tags come as ops end, even for an op whose handle was destroyed. */
static void completions(sluice_communicator* job) {
  sluice_completion_queue* queue = sluice_completion_queue_create();
  uint64_t tag = 0, sum = 0;
  CHECK(queue != NULL);
  for (uint64_t i = 1; i <= 3; ++i) {
    sluice_work* work = NULL;
    CHECK(sluice_barrier(job, &work, &error) == SLUICE_OK);
    CHECK(sluice_completion_queue_add(queue, work, i, &error) == SLUICE_OK);
    sluice_work_destroy(work);
  }
  for (int i = 0; i < 3; ++i) {
    CHECK(sluice_completion_queue_next(queue, SLUICE_FOREVER, &tag, &error) == SLUICE_OK);
    sum = 10 * sum + tag;
  }
  CHECK(sum % 9 == 6 && sum > 122 && sum < 322); /* 1, 2 and 3 in any order */
  REFUSED(sluice_completion_queue_next(queue, 0, &tag, &error), SLUICE_TIMEOUT, "no op");
  struct pollfd event = {.fd = -1, .events = POLLIN};
  CHECK(sluice_completion_queue_descriptor(queue, &event.fd, &error) == SLUICE_OK);
  CHECK(poll(&event, 1, 0) == 0);
  sluice_work* told = NULL;
  CHECK(sluice_barrier(job, &told, &error) == SLUICE_OK);
  CHECK(sluice_completion_queue_add(queue, told, 4, &error) == SLUICE_OK);
  CHECK(poll(&event, 1, 60000) == 1);
  CHECK(sluice_completion_queue_next(queue, 0, &tag, &error) == SLUICE_OK && tag == 4);
  CHECK(poll(&event, 1, 0) == 0);
  sluice_work_destroy(told);
  REFUSED(sluice_completion_queue_descriptor(queue, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "descriptor is null");
  REFUSED(sluice_completion_queue_descriptor(NULL, &event.fd, &error), SLUICE_INVALID_ARGUMENT,
          "queue is null");
  sluice_completion_queue_interrupt(queue);
  REFUSED(sluice_completion_queue_next(queue, SLUICE_FOREVER, &tag, &error), SLUICE_TIMEOUT,
          "no op");
  REFUSED(sluice_completion_queue_next(queue, 0, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "tag is null");
  REFUSED(sluice_completion_queue_next(NULL, 0, &tag, &error), SLUICE_INVALID_ARGUMENT,
          "queue is null");
  REFUSED(sluice_completion_queue_add(queue, NULL, 1, &error), SLUICE_INVALID_ARGUMENT,
          "work is null");
  sluice_completion_queue_interrupt(NULL);
  sluice_completion_queue_destroy(NULL);
  sluice_completion_queue_destroy(queue);
}

/* Destroying a handle does not cancel its op; a handle may outlive its communicator. */
static void handles(sluice_communicator* job, sluice_work** kept) {
  sluice_work* dropped = NULL;
  CHECK(sluice_barrier(job, &dropped, &error) == SLUICE_OK);
  sluice_work_destroy(dropped);
  for (int i = 0; i < STREAMS; ++i) { /* one behind it on its stream, so that it ends before */
    sluice_work* behind = NULL;
    CHECK(sluice_barrier(job, &behind, &error) == SLUICE_OK);
    await(behind);
  }
  float* memory = sluice_allocate(COUNT * sizeof *memory);
  CHECK(memory != NULL && (uintptr_t)memory % 64 == 0);
  CHECK(sluice_allocate(SIZE_MAX) == NULL);
  void* nothing = sluice_allocate(0);
  CHECK(nothing != NULL && nothing != memory);
  sluice_free(nothing);
  sluice_free(NULL);
  memory[0] = NAN;
  CHECK(sluice_all_reduce(job, memory, memory, 1, SLUICE_FLOAT32, NULL, kept, &error) == SLUICE_OK);
  CHECK(sluice_work_wait(*kept, SLUICE_FOREVER, NULL) == SLUICE_OK);
  CHECK(isnan(memory[0]));
  sluice_free(memory);
}

/* A job that this program's ranks do not need any more. */
static void aborted(sluice_communicator* job, sluice_communicator* word) {
  sluice_work* work = NULL;
  CHECK(sluice_communicator_failure(job, &error) == SLUICE_OK);
  CHECK(sluice_barrier(word, &work, &error) == SLUICE_OK);
  await(work);
  const int last = sluice_communicator_world_size(job) - 1;
  const int aborts = sluice_communicator_rank(job) == last;
  sluice_communicator_note_exception(NULL);
  if (aborts) {
    sluice_communicator_note_exception(job);
    CHECK(sluice_communicator_abort(job, "tests do so", &error) == SLUICE_OK);
  }
  CHECK(sluice_barrier(job, &work, &error) == SLUICE_OK);
  REFUSED(sluice_work_wait(work, SLUICE_FOREVER, &error),
          aborts ? SLUICE_ABORTED : SLUICE_RANK_LEFT,
          aborts ? "tests do so" : "failed: an exception");
  sluice_work_destroy(work);
  CHECK(sluice_communicator_abort(job, NULL, &error) == SLUICE_OK);
  REFUSED(sluice_communicator_failure(job, &error), aborts ? SLUICE_ABORTED : SLUICE_RANK_LEFT,
          aborts ? "tests do so" : "failed: an exception");
  CHECK(error.rank == (aborts ? -1 : last));
  CHECK(sluice_barrier(word, &work, &error) == SLUICE_OK);
  await(work);
}

/* The same, by a time-out of rank 0, which waits in vain. */
static void timed_out(sluice_communicator* job, sluice_communicator* word) {
  sluice_work* work = NULL;
  CHECK(sluice_barrier(word, &work, &error) == SLUICE_OK);
  await(work);
  if (sluice_communicator_world_size(job) == 1) return;
  if (sluice_communicator_rank(job) == 0) {
    CHECK(sluice_barrier(job, &work, &error) == SLUICE_OK);
    REFUSED(sluice_work_set_timeout(work, 86400001, &error), SLUICE_INVALID_ARGUMENT, "86400000");
    REFUSED(sluice_work_set_timeout(work, UINT64_MAX, &error), SLUICE_INVALID_ARGUMENT, "expected");
    CHECK(sluice_work_set_timeout(work, 50, &error) == SLUICE_OK);
    REFUSED(sluice_work_wait(work, SLUICE_FOREVER, &error), SLUICE_OP_TIMED_OUT,
            "op 0 (barrier) was not done within 50 ms");
    sluice_work_destroy(work);
  } else {
    while (sluice_communicator_failure(job, &error) == SLUICE_OK) sched_yield();
    REFUSED(sluice_communicator_failure(job, &error), SLUICE_OP_TIMED_OUT, "op 0 was not done on");
  }
  CHECK(error.op == 0);
}

static void shared_contexts(sluice_options* options) {
  sluice_context *first = NULL, *second = NULL, *other = NULL;
  sluice_communicator* job = NULL;
  REFUSED(sluice_context_share(NULL, &first, &error), SLUICE_INVALID_ARGUMENT, "options is null");
  REFUSED(sluice_context_share(options, NULL, &error), SLUICE_INVALID_ARGUMENT, "context is null");
  CHECK(sluice_context_share(options, &first, &error) == SLUICE_OK);
  CHECK(sluice_context_share(options, &second, &error) == SLUICE_OK);
  REFUSED(sluice_context_open(options, &other, &error), SLUICE_INVALID_ARGUMENT, "exists already");
  CHECK(sluice_context_close(first, &error) == SLUICE_OK);
  REFUSED(sluice_context_start_timeline(NULL, "x", &error), SLUICE_INVALID_ARGUMENT,
          "context is null");
  REFUSED(sluice_context_start_timeline(second, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "file is null");
  REFUSED(sluice_context_start_timeline(second, "/no/such/%r", &error), SLUICE_UNAVAILABLE,
          "'/no/such/");
  REFUSED(sluice_context_stop_timeline(second, &error), SLUICE_INVALID_ARGUMENT, "no timeline");
  CHECK(sluice_communicator_join(second, options, &job, &error) == SLUICE_OK);
  REFUSED(sluice_context_close(second, &error), SLUICE_INVALID_ARGUMENT, "1 of its communicators");
  sluice_communicator_destroy(job);

  CHECK(sluice_options_set(options, "mtu", "1400", &error) == SLUICE_OK);
  REFUSED(sluice_context_share(options, &other, &error), SLUICE_INVALID_ARGUMENT,
          "(SLUICE_MTU) is '1400', but '");
  CHECK(sluice_context_close(second, &error) == SLUICE_OK);
  CHECK(sluice_context_share(options, &other, &error) == SLUICE_OK);
  CHECK(sluice_context_close(other, &error) == SLUICE_OK);
}

/* Three blocks of 4, 4 and 2 elements. */
static void compressed_blocks(void) {
  float gradients[10] = {1, 1, 1, 1, 4, 4, 4, 4, 2, 2}, residual[10] = {0}, out[10];
  uint64_t bits = 0, sent = 0;
  sluice_block_compression blocks = SLUICE_BLOCK_COMPRESSION_INIT;
  CHECK(blocks.block_elements == 256 && blocks.divisor == 1);
  blocks.gradients = gradients;
  blocks.residual = residual;
  blocks.out = out;
  blocks.count = 10;
  blocks.sent_blocks = &bits;
  blocks.sent_words = 1;
  blocks.block_elements = 4;
  blocks.divisor = 2;
  CHECK(sluice_compress_top_k(&blocks, 1, &sent, &error) == SLUICE_OK);
  CHECK(sent == 1 && bits == 2 && out[4] == 2 && out[0] == 0 && out[9] == 0);
  CHECK(residual[0] == 1 && residual[4] == 0 && residual[9] == 2);
  CHECK(sluice_compress_threshold(&blocks, 5, NULL, NULL) == SLUICE_OK);
  CHECK(bits == 6 && out[8] == 2 && residual[0] == 2 && residual[8] == 0);
  const float parameters[10] = {1, 1, 1, 1, 1, 1, 1, 1, 8, 8};
  CHECK(sluice_compress_top_k_ratio(&blocks, parameters, 2, &sent, &error) == SLUICE_OK);
  CHECK(sent == 2 && bits == 3 && out[0] == 1.5F && residual[8] == 2);
  CHECK(sluice_compress_random_k(&blocks, 3, 7, 1, &sent, &error) == SLUICE_OK);
  CHECK(sent == 3 && bits == 7);

  REFUSED(sluice_compress_top_k(NULL, 1, &sent, &error), SLUICE_INVALID_ARGUMENT, "blocks is null");
  REFUSED(sluice_compress_threshold(&blocks, -1, &sent, &error), SLUICE_INVALID_ARGUMENT, "norm");
  REFUSED(sluice_compress_top_k_ratio(&blocks, NULL, 1, &sent, &error), SLUICE_INVALID_ARGUMENT,
          "parameters is null");
  blocks.sent_words = 2;
  REFUSED(sluice_compress_top_k(&blocks, 1, &sent, &error), SLUICE_INVALID_ARGUMENT, "2 words");
  blocks.out = NULL;
  REFUSED(sluice_compress_top_k(&blocks, 1, &sent, &error), SLUICE_INVALID_ARGUMENT, "out is null");
  blocks.size = 8;
  REFUSED(sluice_compress_top_k(&blocks, 1, &sent, &error), SLUICE_INVALID_ARGUMENT, "8 bytes");
}

static void compressed_elements(void) {
  const float gradients[6] = {1, -5, 0, 3, 5, 0};
  float residual[6] = {0, 0, 0, -7, 0, 0};
  const uint32_t* keys = NULL;
  const float* values = NULL;
  sluice_elements* elements = sluice_elements_create();
  sluice_element_top_k* top_k = NULL;
  CHECK(elements != NULL && sluice_elements_get(elements, &keys, &values) == 0);
  CHECK(sluice_element_top_k_create(2, 0, 1, &top_k, &error) == SLUICE_OK);
  CHECK(sluice_element_top_k_compress(top_k, gradients, residual, 6, elements, &error) ==
        SLUICE_OK);
  CHECK(sluice_elements_get(elements, &keys, &values) == 2);
  CHECK(keys[0] == 1 && keys[1] == 4 && values[0] == -5 && values[1] == 5);
  CHECK(residual[1] == 0 && residual[3] == -4);
  CHECK(sluice_element_top_k_set_k(top_k, 1, &error) == SLUICE_OK);
  CHECK(sluice_element_top_k_compress(top_k, gradients, NULL, 6, elements, NULL) == SLUICE_OK);
  CHECK(sluice_elements_get(elements, NULL, NULL) == 1);
  CHECK(sluice_compress_elements(gradients, residual, 6, 1, elements, &error) == SLUICE_OK);
  CHECK(sluice_elements_get(elements, &keys, NULL) == 4 && keys[2] == 3);
  REFUSED(sluice_compress_elements(NULL, NULL, 6, 1, elements, &error), SLUICE_INVALID_ARGUMENT,
          "gradients is null");
  REFUSED(sluice_compress_elements(gradients, residual, 6, -1, elements, &error),
          SLUICE_INVALID_ARGUMENT, "magnitude");
  REFUSED(sluice_element_top_k_compress(NULL, gradients, NULL, 6, elements, &error),
          SLUICE_INVALID_ARGUMENT, "top_k is null");
  sluice_element_top_k_destroy(top_k);
  REFUSED(sluice_element_top_k_create(2, 0, 0, &top_k, &error), SLUICE_INVALID_ARGUMENT,
          "exact_every is 0");
  sluice_element_top_k_destroy(NULL);
  sluice_elements_destroy(elements);
  sluice_elements_destroy(NULL);
  CHECK(sluice_elements_get(NULL, NULL, NULL) == 0);

  uint64_t k = 0;
  CHECK(sluice_k_for_union(1, 100, 10, 500, 0, 0, &k, &error) == SLUICE_OK && k == 50);
  CHECK(sluice_k_for_union(8, 100, 10, 500, 20, 20, &k, &error) == SLUICE_OK && k == 50);
  CHECK(sluice_k_for_union(8, 100, 10, 500, 0, 0, &k, &error) == SLUICE_OK && k == 8);
  REFUSED(sluice_k_for_union(0, 100, 10, 500, 0, 0, &k, &error), SLUICE_INVALID_ARGUMENT, "ranks");
}

/* Each rank has one element of its own. Only one that all have reaches the threshold. */
static void largest_of_the_sum(sluice_communicator* job) {
  const uint64_t ranks = (uint64_t)sluice_communicator_world_size(job);
  const int32_t rank = sluice_communicator_rank(job);
  float gradients[8] = {0}, residual[8] = {0}, out[8];
  sluice_global_top_k* top_k = NULL;
  sluice_work* work = NULL;
  uint64_t delivered = 9;
  REFUSED(sluice_global_top_k_create(1, 1, SLUICE_MAX, 1000, 0, &top_k, &error),
          SLUICE_INVALID_ARGUMENT, "reduction is max; sum or average expected");
  CHECK(sluice_global_top_k_create(2, 1, SLUICE_SUM, 1000, 0, &top_k, &error) == SLUICE_OK);
  REFUSED(sluice_global_top_k_finish(top_k, out, 8, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "no step is under way");
  gradients[7] = 5;
  gradients[rank] = 3;
  for (int step = 0; step < 2; ++step) {
    CHECK(sluice_global_top_k_start(job, top_k, gradients, residual, 8, &work, &error) ==
          SLUICE_OK);
    CHECK(sluice_work_wait(work, SLUICE_FOREVER, &error) == SLUICE_OK);
    REFUSED(sluice_global_top_k_set_k(top_k, 1, &error), SLUICE_INVALID_ARGUMENT, "under way");
    REFUSED(sluice_global_top_k_finish(top_k, out, 7, NULL, &error), SLUICE_INVALID_ARGUMENT,
            "out has 7 elements, 8 expected");
    CHECK(sluice_global_top_k_finish(top_k, out, 8, &delivered, &error) == SLUICE_OK);
    CHECK(delivered == ranks + 1 && out[7] == 5 * (float)ranks && out[0] == 3 && out[6] == 0);
    CHECK(residual[rank] == 0 && residual[7] == 0);
    sluice_work_destroy(work);
  }
  CHECK(sluice_global_top_k_threshold(top_k) == (ranks > 1 ? 3 : 0));
  CHECK(sluice_global_top_k_set_k(top_k, 1, &error) == SLUICE_OK);
  CHECK(sluice_global_top_k_forget(top_k, &error) == SLUICE_OK);
  CHECK(sluice_global_top_k_threshold(top_k) == 0);
  sluice_global_top_k_destroy(top_k);
  CHECK(sluice_global_top_k_threshold(NULL) == 0);
  sluice_global_top_k_destroy(NULL);
}

/* A job whose ranks never all join. */
static void interrupted_join(sluice_context* context) {
  const int interrupt = 1;
  sluice_communicator* never = NULL;
  sluice_options* options = sluice_options_create();
  CHECK(sluice_options_from_environment(options, &error) == SLUICE_OK);
  CHECK(sluice_options_set(options, "job", "9", &error) == SLUICE_OK);
  CHECK(sluice_options_set(options, "world_size", "256", &error) == SLUICE_OK);
  CHECK(sluice_options_set(options, "join_timeout_ms", "600000", &error) == SLUICE_OK);
  CHECK(sluice_options_set_interrupt(options, &interrupt, &error) == SLUICE_OK);
  REFUSED(sluice_communicator_join(context, options, &never, &error), SLUICE_ABORTED,
          "job 9: the join was interrupted while it waited for ");
  CHECK(never == NULL);
  sluice_options_destroy(options);
}

int main(void) {
  names();
  compressed_blocks();
  compressed_elements();
  settings();
  long_message();
  null_handles();

  sluice_options* options = sluice_options_create();
  sluice_context *context = NULL, *second = NULL;
  sluice_communicator *job = NULL, *word = NULL;
  CHECK(sluice_options_from_environment(options, &error) == SLUICE_OK);
  CHECK(sluice_options_set(options, "streams", "8", &error) == SLUICE_OK);
  REFUSED(sluice_context_open(options, NULL, &error), SLUICE_INVALID_ARGUMENT, "context is null");
  CHECK(sluice_context_open(options, &context, &error) == SLUICE_OK);
  REFUSED(sluice_context_open(options, &second, &error), SLUICE_INVALID_ARGUMENT, "exists already");
  CHECK(second == NULL);
  REFUSED(sluice_communicator_join(context, options, NULL, &error), SLUICE_INVALID_ARGUMENT,
          "communicator is null");
  interrupted_join(context);
  CHECK(sluice_communicator_join(context, options, &job, &error) == SLUICE_OK);
  CHECK(sluice_options_set(options, "job", "1", &error) == SLUICE_OK);
  CHECK(sluice_communicator_join(context, options, &word, &error) == SLUICE_OK);
  REFUSED(sluice_context_close(context, &error), SLUICE_INVALID_ARGUMENT, "2 of its communicators");
  sums_with_bitmap(job, 0);
  sums_with_bitmap(job, 48);
  older_options(job);
  moves(job);
  parts(job);
  messages(job);
  roots_beyond_16_bits(job);
  bad_arguments(job);
  largest_of_the_sum(job);
  bounded_wait(job, word);
  sluice_work *kept = NULL, *kept_sums = NULL, *late = NULL;
  sums_of_few_bits(job);
  sparse_sums(job);
  sparse_sums_combined(job, &kept_sums);
  sparse_sums_refused(job);
  sparse_sums_bounded(job);
  completions(job);
  splits(context, job);
  handles(job, &kept);

  CHECK(sluice_communicator_leave(job, &error) == SLUICE_OK);
  CHECK(sluice_barrier(job, &late, &error) == SLUICE_OK);
  REFUSED(sluice_work_wait(late, SLUICE_FOREVER, &error), SLUICE_ABORTED, "");
  CHECK(error.rank == -1 && error.op >= 0 && error.last_heard_ms == -1);
  sluice_work_destroy(late);
  CHECK(sluice_communicator_failure(job, &error) == SLUICE_OK);
  sluice_communicator_destroy(job);
  CHECK(sluice_options_set(options, "job", "2", &error) == SLUICE_OK);
  CHECK(sluice_communicator_join(context, options, &job, &error) == SLUICE_OK);
  aborted(job, word);
  sluice_communicator_destroy(job);
  CHECK(sluice_communicator_join(context, options, &job, &error) == SLUICE_OK);
  timed_out(job, word);
  sluice_communicator_destroy(job);
  destroyed_by_a_cancelled_thread(word);
  CHECK(sluice_work_done(kept) == 1);
  sluice_work_destroy(kept);
  uint64_t count = 9;
  CHECK(sluice_work_sparse_sums(kept_sums, SLUICE_INT64, NULL, NULL, &count, &error) == SLUICE_OK);
  CHECK(count < 3);
  sluice_work_destroy(kept_sums);
  REFUSED(sluice_context_share(options, &second, &error), SLUICE_INVALID_ARGUMENT,
          "exists already");
  CHECK(sluice_context_close(context, &error) == SLUICE_OK);
  shared_contexts(options);
  sluice_options_destroy(options);
  return 0;
}
