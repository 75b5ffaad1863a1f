/* Sluice's worker library for C, and for every language that can call C.
 *
 *   sluice_error error;
 *   sluice_options *options = sluice_options_create();
 *   sluice_context *context = NULL;
 *   sluice_communicator *job = NULL;
 *   sluice_work *work = NULL;
 *   if (sluice_options_from_environment(options, &error) != SLUICE_OK ||
 *       sluice_context_open(options, &context, &error) != SLUICE_OK ||
 *       sluice_communicator_join(context, options, &job, &error) != SLUICE_OK ||
 *       sluice_all_reduce(job, x, x, n, SLUICE_FLOAT32, NULL, &work, &error) != SLUICE_OK ||
 *       sluice_work_wait(work, SLUICE_FOREVER, &error) != SLUICE_OK)
 *     fprintf(stderr, "%s\n", error.message);
 *   sluice_work_destroy(work);
 *   sluice_communicator_destroy(job);
 *   sluice_context_close(context, NULL);
 *   sluice_options_destroy(options);
 *
 * It is the C++ interface of sluice.hpp with the same meaning: what is said there of ops, threads
 * and failures holds here. All functions may be called by several threads at once, also on one
 * handle, but for those that destroy it, and for sluice_options.
 *
 * Errors. Whatever can fail returns a sluice_status and fills `*error` unless `error` is NULL; on
 * SLUICE_OK `*error` is left alone. A call that fails changes nothing and writes no other output.
 * A null handle or output is SLUICE_INVALID_ARGUMENT; functions that destroy take NULL and do
 * nothing then. Nothing here throws, ends the process, or prints, but for what `log` asks for, and
 * a thread cannot be cancelled within a call.
 *
 * The binary interface is stable: within one soname functions, values and members are only added:
 * members at the end of structs whose size the caller tells, or where a struct has reserved room.
 * No struct has padding. (The C++ interface is of one release: see sluice.hpp.)
 */
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ------------------------------------------------------------------------------- */

/* What came of a call; those above 0 are sluice::ErrorCode. */
typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1,   /* a setting or argument out of its range; nothing was started */
  SLUICE_UNAVAILABLE = 2,        /* a device, privilege, socket or memory is not to be had */
  SLUICE_AGGREGATOR_LOST = 3,    /* nothing was received within "aggregator_timeout_ms" */
  SLUICE_WORKER_LOST = 4,        /* a rank died or was declared failed; `rank` names it */
  SLUICE_FORMATION_FAILED = 5,   /* not all ranks came, or they disagree about the job */
  SLUICE_OP_MISMATCH = 6,        /* ranks called different collectives */
  SLUICE_RANK_LEFT = 7,          /* a rank left while others still work; `rank` names it */
  SLUICE_RANK_RESTARTED = 8,     /* a rank joined again: its generation of the job has ended */
  SLUICE_QUOTA = 9,              /* a limit of the aggregator on jobs, ports or memory is reached */
  SLUICE_ABORTED = 10,           /* this process left with ops pending */
  SLUICE_PROTOCOL = 11,          /* a peer broke the protocol's rules: a defect, please report it */
  SLUICE_TIMEOUT = 12,           /* the caller's own bound of a wait passed; the op goes on */
  SLUICE_NOT_AUTHENTICATED = 13, /* the job has a secret, and this rank has another one or none */
  SLUICE_OP_TIMED_OUT = 14 /* an op was not done within its time-out, which ended the job; `rank` is
                              one that it waited for, if that is known */
} sluice_status;

/* "ok", "invalid argument", "aggregator lost", ...; "unknown" for a value that is none. */
const char* sluice_status_name(sluice_status status);

/* An error as the caller keeps it; 512 bytes, for ever. */
typedef struct sluice_error {
  sluice_status status;
  int32_t rank;          /* the rank at fault, 0..255, or -1 */
  int64_t op;            /* the op it hit, in call order from 0, or -1 */
  int64_t last_heard_ms; /* of a lost worker: how long it had not been heard then; or -1 */
  char message[488];     /* one line for a person, in UTF-8, ended by NUL; cut where longer */
} sluice_error;

/* "0.1.0": of the library that runs, which may be newer than this header. */
const char* sluice_version(void);

/* "629700c", say: what git says of the sources of the library that runs, with "-dirty" where they
 * were changed; the version where they came without git. */
const char* sluice_build(void);

/* ---- settings ----------------------------------------------------------------------------- */

/* How to reach the aggregators, and one job as one rank joins it. */
typedef struct sluice_options sluice_options;

/* The built-in defaults; NULL if there is no memory. */
sluice_options* sluice_options_create(void);

/* Replaces all settings by the environment's: every SLUICE_* variable that is set, rank and world
 * size also from the launcher (torchrun, Open MPI, PMI, Slurm), and the defaults of the others. A
 * variable that is a misspelt one of Sluice's is SLUICE_INVALID_ARGUMENT. */
sluice_status sluice_options_from_environment(sluice_options* options, sluice_error* error);

/* `name`: as the environment variable, in lower case without its prefix: "aggregators", "rank",
 * "world_size", "job", "block_elements", "join_timeout_ms" stands for SLUICE_JOIN_TIMEOUT_MS; the
 * members of sluice::ContextOptions and sluice::JobOptions name each. `value` has the variable's
 * form and takes the place of what was set before. An unknown name or a value out of range is
 * SLUICE_INVALID_ARGUMENT, told with what was expected. */
sluice_status sluice_options_set(sluice_options* options, const char* name, const char* value,
                                 sluice_error* error);

/* While a join waits it looks at this number some 20 times a second: anything but 0 ends it with
 * SLUICE_ABORTED. Another thread or a signal's handler may write it, atomically. It must live as
 * long as the communicator; parts of that look at it, too. NULL: nothing is looked at, as by
 * default and after sluice_options_from_environment(). */
sluice_status sluice_options_set_interrupt(sluice_options* options, const int* interrupt,
                                           sluice_error* error);

void sluice_options_destroy(sluice_options* options);

/* The id of the job that "job" would name: of decimal digits that number; of a name, 1..64
 * printable ASCII characters without blanks, the first a letter or a digit, its hash. Two names may
 * have one id: see JobId of sluice.hpp. */
sluice_status sluice_job_id(const char* name, uint32_t* id, sluice_error* error);

/* ---- context and communicator ------------------------------------------------------------- */

/* This process's ports, packet memory and progress thread: at most one at a time, which parts of a
 * program that do not know of each other share by sluice_context_share. */
typedef struct sluice_context sluice_context;

/* This process's membership of one job; many may share a context. */
typedef struct sluice_communicator sluice_communicator;

/* Keeps no reference to `options`. SLUICE_INVALID_ARGUMENT, SLUICE_UNAVAILABLE. */
sluice_status sluice_context_open(const sluice_options* options, sluice_context** context,
                                  sluice_error* error);

/* A handle of the context that a process's bindings share: opened with `options` by the first call,
 * closed when the last such handle is. Where it is open, those settings of `options` that are
 * neither the environment's nor the default must be as it has them; else, or where a context of
 * sluice_context_open exists, SLUICE_INVALID_ARGUMENT. SLUICE_UNAVAILABLE. */
sluice_status sluice_context_share(const sluice_options* options, sluice_context** context,
                                   sluice_error* error);

/* Begins to write a timeline of the ops that are called from now on to `file`, as the setting
 * "timeline" does from the start: see docs/timeline.md. SLUICE_INVALID_ARGUMENT where there is one,
 * or for an empty name; SLUICE_UNAVAILABLE, naming the path. */
sluice_status sluice_context_start_timeline(sluice_context* context, const char* file,
                                            sluice_error* error);

/* Completes the file. SLUICE_INVALID_ARGUMENT where there is no timeline; SLUICE_UNAVAILABLE,
 * naming the path, if not all could be written: there is none then either. */
sluice_status sluice_context_stop_timeline(sluice_context* context, sluice_error* error);

/* SLUICE_INVALID_ARGUMENT, and it stays open, while communicators of it exist or join. */
sluice_status sluice_context_close(sluice_context* context, sluice_error* error);

/* Returns when all ranks have joined, or with why they did not. */
sluice_status sluice_communicator_join(sluice_context* context, const sluice_options* options,
                                       sluice_communicator** communicator, sluice_error* error);

/* Leaves the job in an orderly way and waits for it. SLUICE_ABORTED if ops were pending: then the
 * job is aborted on all ranks. The handle is still to be destroyed. */
sluice_status sluice_communicator_leave(sluice_communicator* communicator, sluice_error* error);

/* Ends the job for all ranks, from any thread and whatever is pending: ops fail with SLUICE_ABORTED
 * here, and with SLUICE_RANK_LEFT, naming this rank, on the others. `why` is for this rank's error;
 * it may be NULL. Does nothing where the job is over. Returns at once. */
sluice_status sluice_communicator_abort(sluice_communicator* communicator, const char* why,
                                        sluice_error* error);

/* Where an exception, or its like, is why this rank leaves the job, aborts it, or destroys the
 * handle: says so before, and ranks that miss this one are told of it. Null: does nothing. */
void sluice_communicator_note_exception(sluice_communicator* communicator);

/* The error that ended the job for this rank, with which every further call fails. SLUICE_OK: none
 * did, or it left in an orderly way. From any thread; never waits. */
sluice_status sluice_communicator_failure(const sluice_communicator* communicator,
                                          sluice_error* failure);

/* The ranks that pending ops wait for, as sluice_work_stragglers tells of one. */
sluice_status sluice_communicator_stragglers(const sluice_communicator* communicator,
                                             uint16_t* ranks, size_t capacity, size_t* count,
                                             sluice_error* error);

/* What a communicator has done since it joined, messages included. */
typedef struct sluice_job_statistics {
  uint64_t ops_completed;
  uint64_t ops_failed;
  uint64_t ops_pending; /* now */
  uint64_t packets_sent;
  uint64_t packets_received;
  uint64_t packets_dropped;   /* of those received: of no use, or not valid */
  uint64_t retransmissions;   /* DATA sent again, and PROBEs */
  uint64_t narrowed_by_loss;  /* times that fewer streams ran, as many DATA were lost */
  uint64_t narrowed_by_delay; /* or as packets waited for long on their way */
  uint64_t rejoins;           /* times that an aggregator was lost, and joined again */
  uint64_t rounds_replayed;   /* for ranks that lacked their results then */
} sluice_job_statistics;

/* `size`: sizeof(sluice_job_statistics), of the header that the caller saw. */
sluice_status sluice_communicator_statistics(const sluice_communicator* communicator,
                                             sluice_job_statistics* statistics, size_t size,
                                             sluice_error* error);

/* Leaves the job if that was not done. */
void sluice_communicator_destroy(sluice_communicator* communicator);

/* 0..world size - 1; -1 for a null handle. */
int32_t sluice_communicator_rank(const sluice_communicator* communicator);

/* 1..256; -1 for a null handle. */
int32_t sluice_communicator_world_size(const sluice_communicator* communicator);

/* Of its job at the aggregators, also where that was derived; 0 for a null handle. */
uint32_t sluice_communicator_job_id(const sluice_communicator* communicator);

/* ---- tensors ------------------------------------------------------------------------------ */

/* Of one element, little-endian. */
typedef enum sluice_element_type {
  SLUICE_FLOAT32 = 1,
  SLUICE_FLOAT64 = 2,
  SLUICE_FLOAT16 = 3,  /* IEEE 754 binary16 */
  SLUICE_BFLOAT16 = 4, /* upper half of a binary32 */
  SLUICE_INT32 = 5,
  SLUICE_INT64 = 6,
  SLUICE_INT8 = 7,
  SLUICE_UINT8 = 8, /* a bool too, as 0 or 1: its logical or is SLUICE_BIT_OR, and so on */
  SLUICE_INT16 = 9
} sluice_element_type;

/* How the ranks' elements become one. A result of floats is never -0.0, but +0.0. */
typedef enum sluice_reduction {
  SLUICE_SUM = 1,     /* in rank order; integers wrap; 16-bit floats accumulate in 32 bits */
  SLUICE_MIN = 2,     /* NaN if any rank has NaN */
  SLUICE_MAX = 3,     /* NaN if any rank has NaN */
  SLUICE_AVERAGE = 4, /* sum / ranks before the single rounding; integers do not wrap, but truncate
                         towards 0 */
  SLUICE_PRODUCT = 5, /* as the sum; zeros of ranks whose block is zero come last */
  SLUICE_BIT_AND = 6, /* of integers, as the next two */
  SLUICE_BIT_OR = 7,
  SLUICE_BIT_XOR = 8
} sluice_reduction;

/* How the fp32 elements of a reduction travel; what each loses: <sluice/sluice.hpp>. */
typedef enum sluice_encoding {
  SLUICE_ENCODING_NONE = 0,
  SLUICE_ENCODING_FLOAT16 = 3,
  SLUICE_ENCODING_BFLOAT16 = 4,
  SLUICE_ENCODING_INT8 = 10, /* times a power of two that each block has, as the next */
  SLUICE_ENCODING_INT4 = 11
} sluice_encoding;

/* Bytes of one element: 1, 2, 4 or 8; 0 for a value that is no type. */
size_t sluice_element_bytes(sluice_element_type type);

/* "float", "double", "half", "bfloat16", "int8", "uint8", "int16", "int32", "int64"; "sum", "min",
 * "max", "avg", "prod", "band", "bor", "bxor"; "?". */
const char* sluice_element_type_name(sluice_element_type type);
const char* sluice_reduction_name(sluice_reduction reduction);

/* From those names; 0 for another text or NULL. */
sluice_element_type sluice_parse_element_type(const char* name);
sluice_reduction sluice_parse_reduction(const char* name);

/* Elements per block of tensors of this type, 1..16384; 0 for what is no type or a null handle. */
uint32_t sluice_block_elements(const sluice_communicator* communicator, sluice_element_type type);

/* The same where an op's options want so many, halved until a block fits; 0: the job's. */
uint32_t sluice_op_block_elements(const sluice_communicator* communicator, sluice_element_type type,
                                  uint16_t wanted);

/* Memory for tensors, aligned to 64 bytes: where a job's ranks of this host may read and write it,
 * so that they sum a tensor there in place; see memory.hpp, also for what a forked process has of
 * it. NULL if there is none. sluice_free takes what sluice_allocate gave, and NULL. */
void* sluice_allocate(size_t bytes);
void sluice_free(void* memory);

/* ---- collectives -------------------------------------------------------------------------- */

/* A started op. Tensors, and the bitmap, belong to Sluice until it is done; to destroy the handle
 * earlier does not cancel it. A handle may outlive its communicator. */
typedef struct sluice_work sluice_work;

/* Of collectives that reduce elements. */
typedef struct sluice_reduce_options {
  size_t size; /* sizeof(sluice_reduce_options), of the header that the caller saw */
  sluice_reduction reduction;
  uint32_t reserved_0; /* 0: room for members to come */
  /* Bit b % 64 of word b / 64 tells that block b, of sluice_op_block_elements elements, may be
   * non-zero; blocks whose bit is clear must hold nothing but +0. Spares the search. NULL: search.
   * ceil(blocks / 64) words at least. */
  const uint64_t* nonzero_blocks;
  size_t nonzero_words;
  uint64_t tag; /* equal on all ranks: tells calls of equal shape in swapped order apart */
  /* Elements per block in this op, 1..16384, equal on all ranks, halved until one block fits a
   * packet; 0: the job's. */
  uint16_t block_elements;
  uint16_t encoding;   /* a sluice_encoding, equal on all ranks; of SLUICE_FLOAT32 alone */
  uint32_t reserved_1; /* 0 */
  /* Of the last two encodings, equal on all ranks. Not 0: elements are rounded up or down by
   * chance, which follows from this number, so that their mean is right. 0: to nearest. */
  uint64_t rounding_seed;
} sluice_reduce_options;

#define SLUICE_REDUCE_OPTIONS_INIT \
  { sizeof(sluice_reduce_options), SLUICE_SUM, 0, NULL, 0, 0, 0, SLUICE_ENCODING_NONE, 0, 0 }

/* Starts: every rank's output becomes the reduction of the ranks' inputs. `input` and `output` have
 * `count` elements and are the same or do not overlap. `options` may be NULL: the sum. */
sluice_status sluice_all_reduce(sluice_communicator* communicator, const void* input, void* output,
                                uint64_t count, sluice_element_type type,
                                const sluice_reduce_options* options, sluice_work** work,
                                sluice_error* error);

/* Starts: every rank's tensor of `count` elements becomes that of rank `root`, bit for bit; the
 * root's is only read. `tag`: equal on all ranks, 0 if there is nothing to tell apart. */
sluice_status sluice_broadcast(sluice_communicator* communicator, void* tensor, uint64_t count,
                               sluice_element_type type, int32_t root, uint64_t tag,
                               sluice_work** work, sluice_error* error);

/* Starts: every rank's output becomes the ranks' inputs one after the other, bit for bit. `counts`
 * has the elements of each rank's input, is equal on all ranks, and is not needed any more when
 * this returns; `ranks`, how many there are, must be the world size. `input` may lie in its place
 * of `output`, else they do not overlap. */
sluice_status sluice_all_gather(sluice_communicator* communicator, const void* input, void* output,
                                const uint64_t* counts, size_t ranks, sluice_element_type type,
                                uint64_t tag, sluice_work** work, sluice_error* error);

/* The next five take `counts` as sluice_all_gather does, unless they say otherwise. */

/* Starts: the root's output becomes the reduction of the ranks' inputs, which have `count`
 * elements; the other ranks' outputs are not used and may be NULL. Else as sluice_all_reduce. */
sluice_status sluice_reduce(sluice_communicator* communicator, const void* input, void* output,
                            uint64_t count, sluice_element_type type, int32_t root,
                            const sluice_reduce_options* options, sluice_work** work,
                            sluice_error* error);

/* Starts: the ranks' inputs are reduced, and each rank's output becomes its part of the result: the
 * parts follow each other in rank order and have `counts` elements. `output` may lie in its place
 * of `input`, else they do not overlap. */
sluice_status sluice_reduce_scatter(sluice_communicator* communicator, const void* input,
                                    void* output, const uint64_t* counts, size_t ranks,
                                    sluice_element_type type, const sluice_reduce_options* options,
                                    sluice_work** work, sluice_error* error);

/* Starts: as sluice_all_gather, but only the root's output becomes anything; the others' may be
 * NULL. */
sluice_status sluice_gather(sluice_communicator* communicator, const void* input, void* output,
                            const uint64_t* counts, size_t ranks, sluice_element_type type,
                            int32_t root, uint64_t tag, sluice_work** work, sluice_error* error);

/* Starts: each rank's output becomes its part of the root's input, bit for bit: the parts follow
 * each other in rank order. The other ranks' inputs are not used and may be NULL. At the root
 * `output` may lie in its place of `input`, else they do not overlap. */
sluice_status sluice_scatter(sluice_communicator* communicator, const void* input, void* output,
                             const uint64_t* counts, size_t ranks, sluice_element_type type,
                             int32_t root, uint64_t tag, sluice_work** work, sluice_error* error);

/* Starts: each rank's output becomes what the ranks have for it, in rank order, bit for bit.
 * `counts[from * world size + to]` has the elements that go from one rank to another; `pairs`, how
 * many there are, must be the square of the world size. A rank's input has one part for each rank,
 * in rank order. Input and output do not overlap. */
sluice_status sluice_all_to_all(sluice_communicator* communicator, const void* input, void* output,
                                const uint64_t* counts, size_t pairs, sluice_element_type type,
                                uint64_t tag, sluice_work** work, sluice_error* error);

/* Starts: sends `count` elements to rank `to`, another than this one, which receives them by
 * sluice_recv, bit for bit; `tensor` is only read. Goes on when both have called, however long that
 * takes. Messages from one rank to another meet in the order of the calls; count, type and tag must
 * be equal on both sides, else both are SLUICE_OP_MISMATCH. What is sent to different ranks, the
 * two directions between two ranks, and collectives do not wait for each other. See
 * Communicator::send of sluice.hpp for what messages take of the context and the aggregators, and
 * for their errors. */
sluice_status sluice_send(sluice_communicator* communicator, const void* tensor, uint64_t count,
                          sluice_element_type type, int32_t to, uint64_t tag, sluice_work** work,
                          sluice_error* error);

/* Starts: receives what rank `from`, another than this one, sends to this one. */
sluice_status sluice_recv(sluice_communicator* communicator, void* tensor, uint64_t count,
                          sluice_element_type type, int32_t from, uint64_t tag, sluice_work** work,
                          sluice_error* error);

/* Starts: done when every rank has called it. */
sluice_status sluice_barrier(sluice_communicator* communicator, sluice_work** work,
                             sluice_error* error);

/* Starts: splits the ranks into parts, as MPI_Comm_split does. Each rank joins those with its color
 * by sluice_communicator_join_split, ordered by `key`, and by their ranks here where keys are
 * equal; with a negative color it joins none. Each part is a job of its own: see
 * Communicator::split of sluice.hpp. */
sluice_status sluice_split(sluice_communicator* communicator, int32_t color, int32_t key,
                           sluice_work** work, sluice_error* error);

/* Starts: the same ranks are to join another job, by sluice_communicator_join_split, too. */
sluice_status sluice_duplicate(sluice_communicator* communicator, sluice_work** work,
                               sluice_error* error);

/* Waits for such an op, and joins this rank's part; returns when all its ranks have joined, or with
 * why they did not. `context`: of the communicator that was split, which may be gone. The work is
 * still to be destroyed. SLUICE_INVALID_ARGUMENT where the color was negative. */
sluice_status sluice_communicator_join_split(sluice_context* context, const sluice_work* split,
                                             sluice_communicator** communicator,
                                             sluice_error* error);

/* ---- sparse sums -------------------------------------------------------------------------- */

/* What a rank has of a sparse sum: `count` keys, each with a row of `row_elements` values. */
typedef struct sluice_sparse_tensor {
  size_t size;          /* sizeof(sluice_sparse_tensor), of the header that the caller saw */
  const uint64_t* keys; /* rising strictly, unless the options say `combine` */
  const void* values;   /* one row behind the other; may be NULL, as `keys`, if `count` is 0 */
  uint64_t count;
  uint64_t row_elements;    /* 1..2^40, equal on all ranks */
  sluice_element_type type; /* equal on all ranks */
  uint32_t reserved_0;      /* 0: room for members to come */
} sluice_sparse_tensor;

#define SLUICE_SPARSE_TENSOR_INIT \
  { sizeof(sluice_sparse_tensor), NULL, NULL, 0, 1, SLUICE_FLOAT32, 0 }

/* Of sparse sums. */
typedef struct sluice_sparse_options {
  size_t size; /* sizeof(sluice_sparse_options), of the header that the caller saw */
  /* Of the ranks that have the key; SLUICE_AVERAGE divides by the world size all the same. */
  sluice_reduction reduction;
  /* 1: take keys in any order, and reduce the rows of equal keys (for the average: add them) in the
   * order in which they come, before anything is sent. Takes a copy. Else 0. */
  int32_t combine;
  /* Only sums with an element of at least this magnitude are delivered, and those with NaN; 0 or
   * more, equal on all ranks. 0: all. Not for rows that do not fit a packet. */
  double threshold;
  /* Bytes that the keys and rows of the result may take, 8 and a row's per key: with more the op
   * fails with SLUICE_INVALID_ARGUMENT on every rank whose bound that is, and the job goes on. */
  uint64_t result_bytes;
  uint64_t tag; /* as that of sluice_reduce_options, and so are the next */
  uint16_t encoding;
  uint16_t reserved_0; /* 0 */
  uint32_t reserved_1; /* 0 */
  uint64_t rounding_seed;
} sluice_sparse_options;

#define SLUICE_SPARSE_OPTIONS_INIT                                                               \
  {                                                                                              \
    sizeof(sluice_sparse_options), SLUICE_SUM, 0, 0, (uint64_t)1 << 30, 0, SLUICE_ENCODING_NONE, \
        0, 0, 0                                                                                  \
  }

/* Starts: the union of all ranks' keys, with the sums of their rows. A rank that lacks a key adds
 * nothing to its sum. All keys are less than `key_bound`, 1..2^64 - 2, equal on all ranks. Keys and
 * values are only read, until the op is done; the struct is not needed any more when this returns.
 * `options` may be NULL: the sum of keys that rise. The work owns what comes of it. */
sluice_status sluice_sparse_all_reduce(sluice_communicator* communicator,
                                       const sluice_sparse_tensor* tensor, uint64_t key_bound,
                                       const sluice_sparse_options* options, sluice_work** work,
                                       sluice_error* error);

/* What came of a sparse sum that has ended well: `*count` keys, which rise, and as many rows of
 * elements of `type`, the tensor's; without those below the threshold. The memory is the work's
 * until that is destroyed. `keys` and `values` may be NULL where they are not wanted. An op that
 * failed returns its error; SLUICE_INVALID_ARGUMENT for another type, for an op that is no sparse
 * sum, and for one that is not done. */
sluice_status sluice_work_sparse_sums(const sluice_work* work, sluice_element_type type,
                                      const uint64_t** keys, const void** values, uint64_t* count,
                                      sluice_error* error);

/* The same as a tensor, of `count` = key_bound * row_elements elements; those that no key has
 * become 0. Errors as above, and SLUICE_INVALID_ARGUMENT for another count. */
sluice_status sluice_work_sparse_dense(const sluice_work* work, void* tensor, uint64_t count,
                                       sluice_element_type type, sluice_error* error);

/* How many keys of it have a sum below the threshold: of at least a half of it, a quarter, an
 * eighth, and less: four numbers, equal on all ranks. Errors as above. */
sluice_status sluice_work_sparse_rejected(const sluice_work* work, uint64_t rejected[4],
                                          sluice_error* error);

/* ---- started ops -------------------------------------------------------------------------- */

#define SLUICE_FOREVER INT64_MAX

/* Until the op is done; SLUICE_TIMEOUT if that takes more than `bound_ns` nanoseconds (0 or less: a
 * look). An op that failed returns its error, to every wait. */
sluice_status sluice_work_wait(const sluice_work* work, int64_t bound_ns, sluice_error* error);

/* 1: ended, well or with an error; 0: still going; -1 for a null handle. Does not drive the op. */
int32_t sluice_work_done(const sluice_work* work);

/* If the op is not done so many milliseconds after the call that started it, 0..86400000, the job
 * ends for all ranks, and every op fails with SLUICE_OP_TIMED_OUT: see Work::set_timeout of
 * sluice.hpp. 0: it may take as long as it takes. In the place of the setting "op_timeout_ms". */
sluice_status sluice_work_set_timeout(const sluice_work* work, uint64_t timeout_ms,
                                      sluice_error* error);

/* How much of it is done, 0..1: of its blocks, zero or not; of a sparse sum, of the streams that
 * carry it. -1 for a null handle. For progress bars, as it takes a lock. */
double sluice_work_progress(const sluice_work* work);

/* The ranks, rising, that an aggregator said it waits for when it was last asked, which is some
 * milliseconds ago at most while the op makes no progress: writes the first `capacity` of them to
 * `ranks`, which may be NULL if that is 0, and how many there are to `count`. None: none is known,
 * or the op is done. */
sluice_status sluice_work_stragglers(const sluice_work* work, uint16_t* ranks, size_t capacity,
                                     size_t* count, sluice_error* error);

/* What one op cost this rank. */
typedef struct sluice_op_statistics {
  uint64_t duration_ns;     /* from the call to completion */
  uint64_t blocks;          /* of the tensor */
  uint64_t blocks_sent;     /* own non-zero ones */
  uint64_t blocks_received; /* those that are non-zero on some rank, and wanted here */
  uint64_t packets_sent;    /* of every kind, for this op */
  uint64_t packets_received;
  uint64_t bytes_sent; /* UDP payload; on one host own non-zero blocks */
  uint64_t bytes_received;
  uint64_t retransmissions; /* DATA sent again, and PROBEs */
} sluice_op_statistics;

/* `size`: sizeof(sluice_op_statistics), of the header that the caller saw. SLUICE_INVALID_ARGUMENT
 * if the op is not done. */
sluice_status sluice_work_statistics(const sluice_work* work, sluice_op_statistics* statistics,
                                     size_t size, sluice_error* error);

void sluice_work_destroy(sluice_work* work);

/* Tells of ops as they end, in the order in which they end, whatever the order in which they began.
 * Several threads may use one queue at once. It may outlive the ops, their handles and the
 * context. */
typedef struct sluice_completion_queue sluice_completion_queue;

/* NULL if there is no memory. No thread may be in a call of the queue that is destroyed; ops that
 * are pending go on. */
sluice_completion_queue* sluice_completion_queue_create(void);
void sluice_completion_queue_destroy(sluice_completion_queue* queue);

/* Has sluice_completion_queue_next give `tag`, which is the caller's to choose, once when the op
 * has ended, well or with an error; at once if it has. An op may be in several queues.
 * SLUICE_INVALID_ARGUMENT for an op that waits in this one already, SLUICE_UNAVAILABLE in a process
 * that was forked from the one that made this. */
sluice_status sluice_completion_queue_add(sluice_completion_queue* queue, const sluice_work* work,
                                          uint64_t tag, sluice_error* error);

/* Gives the tag of the op that ended first of those not given yet. Waits for one, up to `bound_ns`
 * nanoseconds (0 or less: a look), and drives the ops meanwhile, as sluice_work_wait does, unless
 * another thread does so. SLUICE_TIMEOUT: none has ended until then, or the wait was interrupted.
 * SLUICE_UNAVAILABLE as above. */
sluice_status sluice_completion_queue_next(sluice_completion_queue* queue, int64_t bound_ns,
                                           uint64_t* tag, sluice_error* error);

/* Ends one wait of sluice_completion_queue_next, the present one or the next. */
void sluice_completion_queue_interrupt(sluice_completion_queue* queue);

/* Gives a file descriptor, for poll() and event loops, that can be read as long as
 * sluice_completion_queue_next has a tag to give at once, or was interrupted; nobody is to read it.
 * The same at each call, and closed with the queue. Whoever waits for it drives no ops: the
 * library's own thread does. SLUICE_UNAVAILABLE as above, and where there is no descriptor left. */
sluice_status sluice_completion_queue_descriptor(sluice_completion_queue* queue, int* descriptor,
                                                 sluice_error* error);

/* ---- compressors -------------------------------------------------------------------------- */

/* Which part of a gradient is sent now, and which stays in a residual for later: compress.hpp has
 * the rules that hold for all, also for zeros, NaN, k = 0 and a k that is too large. Elements are
 * fp32. No context is needed; SLUICE_INVALID_ARGUMENT for what does not fit, and then nothing is
 * written. */

/* A tensor, in blocks of which some are sent. */
typedef struct sluice_block_compression {
  size_t size;            /* sizeof(sluice_block_compression), of the header that the caller saw */
  const float* gradients; /* `count` elements, as the next two */
  float* residual;        /* read and written; zeros at first. NULL: none, and nothing is kept */
  float* out;             /* written: what is sent, +0 elsewhere. May be `gradients`; else the three
                           * must not overlap */
  uint64_t count;
  uint64_t* sent_blocks;   /* written: as nonzero_blocks of sluice_reduce_options */
  size_t sent_words;       /* ceil(blocks / 64) */
  uint32_t block_elements; /* 1 or more; the last block may be short */
  float divisor;           /* of what is sent, not of the residual; finite and above 0 */
} sluice_block_compression;

#define SLUICE_BLOCK_COMPRESSION_INIT \
  { sizeof(sluice_block_compression), NULL, NULL, NULL, 0, NULL, 0, 256, 1 }

/* Sends the blocks whose Euclidean norm is above `norm`, 0 or more. `sent`, here and in the next
 * three: how many blocks are sent; it may be NULL. */
sluice_status sluice_compress_threshold(const sluice_block_compression* blocks, double norm,
                                        uint64_t* sent, sluice_error* error);

/* Sends the k blocks of the largest norms, of equal ones those that come first. */
sluice_status sluice_compress_top_k(const sluice_block_compression* blocks, uint64_t k,
                                    uint64_t* sent, sluice_error* error);

/* Sends the k blocks with the largest ratio of their norm to that of their `parameters`, `count`
 * elements. */
sluice_status sluice_compress_top_k_ratio(const sluice_block_compression* blocks,
                                          const float* parameters, uint64_t k, uint64_t* sent,
                                          sluice_error* error);

/* Sends k blocks by chance, the same ones on all ranks that give the same sizes, seed and step. */
sluice_status sluice_compress_random_k(const sluice_block_compression* blocks, uint64_t k,
                                       uint64_t seed, uint64_t step, uint64_t* sent,
                                       sluice_error* error);

/* Single elements that a compressor has chosen, by rising keys. */
typedef struct sluice_elements sluice_elements;

/* Without elements at first; NULL if there is no memory. */
sluice_elements* sluice_elements_create(void);
/* How many there are; `*keys` and `*values` then point to as many, until the next call that writes
 * or destroys them. Either may be NULL; 0 for a null handle. */
size_t sluice_elements_get(const sluice_elements* elements, const uint32_t** keys,
                           const float** values);
void sluice_elements_destroy(sluice_elements* elements);

/* Takes the elements whose magnitude is `magnitude` (0 or more) or above out of gradients +
 * residual, and replaces what `out` held. `count` is at most 2^32; `residual` may be NULL. */
sluice_status sluice_compress_elements(const float* gradients, float* residual, uint64_t count,
                                       float magnitude, sluice_elements* out, sluice_error* error);

/* The largest elements of one tensor; not for two threads at once. */
typedef struct sluice_element_top_k sluice_element_top_k;

/* k elements of each bucket of `bucket_elements`, or of the tensor if that is 0. Every
 * `exact_every`-th call (1 or more), and the first, takes exactly those; calls between take what
 * the threshold of the last exact one lets through; after over twice as many the next is exact. */
sluice_status sluice_element_top_k_create(uint64_t k, uint64_t bucket_elements,
                                          uint32_t exact_every, sluice_element_top_k** top_k,
                                          sluice_error* error);
/* Another k makes the next call exact. */
sluice_status sluice_element_top_k_set_k(sluice_element_top_k* top_k, uint64_t k,
                                         sluice_error* error);
/* As sluice_compress_elements. */
sluice_status sluice_element_top_k_compress(sluice_element_top_k* top_k, const float* gradients,
                                            float* residual, uint64_t count, sluice_elements* out,
                                            sluice_error* error);
void sluice_element_top_k_destroy(sluice_element_top_k* top_k);

/* A k for which the union of the ranks' blocks, or elements, takes about `bytes`: of `units` that
 * the tensor has, each of `unit_bytes` on the wire, headers included. `own` and `in_union` are the
 * sizes of an earlier step, on a rank and of the union; 0 and 0: none is known, and the ranks'
 * choices are taken for independent. See UnionTarget of compress.hpp. */
sluice_status sluice_k_for_union(uint32_t ranks, uint64_t units, uint64_t unit_bytes,
                                 uint64_t bytes, uint64_t own, uint64_t in_union, uint64_t* k,
                                 sluice_error* error);

/* ---- the k largest elements of the sum ------------------------------------------------------- */

/* Ok-Topk's loop, of one tensor, step by step: see GlobalTopK of global_top_k.hpp. Not for two
 * threads at once. k, reduction and tag must be equal on all ranks, and all take the same steps. */
typedef struct sluice_global_top_k sluice_global_top_k;

/* exact_every: 1 or more, as above. reduction: SLUICE_SUM or SLUICE_AVG. result_bytes: with more
 * keys and sums than that, 12 bytes each, a step fails on this rank. */
sluice_status sluice_global_top_k_create(uint64_t k, uint32_t exact_every,
                                         sluice_reduction reduction, uint64_t result_bytes,
                                         uint64_t tag, sluice_global_top_k** top_k,
                                         sluice_error* error);
/* Begins a step. `gradients` are not needed any more when this returns; `residual`, as many, zeros
 * at first, or NULL for none, belongs to the step until it is finished. `*work` is for waiting, and
 * the caller's to destroy. */
sluice_status sluice_global_top_k_start(sluice_communicator* communicator,
                                        sluice_global_top_k* top_k, const float* gradients,
                                        float* residual, uint64_t count, sluice_work** work,
                                        sluice_error* error);
/* Waits for the step's end, and sets residual and threshold. `out` becomes the `*delivered` sums,
 * +0 elsewhere; it may be the gradients; `count` as in start. `delivered` may be NULL. If the op
 * has failed, returns its error, and the residual is gradients + residual. */
sluice_status sluice_global_top_k_finish(sluice_global_top_k* top_k, float* out, uint64_t count,
                                         uint64_t* delivered, sluice_error* error);
/* From the next step on; on all ranks. SLUICE_INVALID_ARGUMENT with a step under way. */
sluice_status sluice_global_top_k_set_k(sluice_global_top_k* top_k, uint64_t k,
                                        sluice_error* error);
/* The next step begins anew, with threshold 0; on all ranks. As above. */
sluice_status sluice_global_top_k_forget(sluice_global_top_k* top_k, sluice_error* error);
/* The next step's: only sums of at least this magnitude are delivered. 0 for a null handle. */
float sluice_global_top_k_threshold(const sluice_global_top_k* top_k);
/* Waits for a step under way. NULL is nothing. */
void sluice_global_top_k_destroy(sluice_global_top_k* top_k);

#ifdef __cplusplus
}
#endif

#endif
