/* MPI_Allreduce and MPI_Reduce of every datatype with every operation, in place and not. */
#include "check.h"

enum { kCount = 1500 };

typedef struct Kind {
  size_t size;
  void (*fill)(void* out, int of);
  void (*combine)(void* result, const void* more, MPI_Op op);
  void (*drop_sign_of_zero)(void* values);
} Kind;

#define MINIMUM_AND_MAXIMUM                            \
  if (op == MPI_MIN) a[i] = b[i] < a[i] ? b[i] : a[i]; \
  if (op == MPI_MAX) a[i] = b[i] > a[i] ? b[i] : a[i];

#define INTEGERS(T)                                                         \
  static void fill_##T(void* out, int of) {                                 \
    for (int i = 0; i < kCount; ++i) ((T*)out)[i] = (T)bits(of, (size_t)i); \
  }                                                                         \
  static void combine_##T(void* result, const void* more, MPI_Op op) {      \
    T* const a = result;                                                    \
    const T* const b = more;                                                \
    for (int i = 0; i < kCount; ++i) {                                      \
      if (op == MPI_SUM) a[i] = (T)((uint64_t)a[i] + (uint64_t)b[i]);       \
      if (op == MPI_PROD) a[i] = (T)((uint64_t)a[i] * (uint64_t)b[i]);      \
      if (op == MPI_BAND) a[i] = (T)(a[i] & b[i]);                          \
      if (op == MPI_BOR) a[i] = (T)(a[i] | b[i]);                           \
      if (op == MPI_BXOR) a[i] = (T)(a[i] ^ b[i]);                          \
      MINIMUM_AND_MAXIMUM                                                   \
    }                                                                       \
  }                                                                         \
  static void drop_sign_of_zero_##T(void* values) {                         \
    (void)values;                                                           \
  }                                                                         \
  static const Kind T##_kind = {sizeof(T), fill_##T, combine_##T, drop_sign_of_zero_##T};

/* Small whole numbers, so that sums and products are exact in any order. */
#define FLOATS(T)                                                      \
  static void fill_##T(void* out, int of) {                            \
    for (int i = 0; i < kCount; ++i) {                                 \
      const uint64_t x = bits(of, (size_t)i);                          \
      ((T*)out)[i] = x == 0 ? 0 : (T)((int)(x % 7) - 3);               \
    }                                                                  \
  }                                                                    \
  static void combine_##T(void* result, const void* more, MPI_Op op) { \
    T* const a = result;                                               \
    const T* const b = more;                                           \
    for (int i = 0; i < kCount; ++i) {                                 \
      if (op == MPI_SUM) a[i] = a[i] + b[i];                           \
      if (op == MPI_PROD) a[i] = a[i] * b[i];                          \
      MINIMUM_AND_MAXIMUM                                              \
    }                                                                  \
  }                                                                    \
  static void drop_sign_of_zero_##T(void* values) {                    \
    for (int i = 0; i < kCount; ++i) ((T*)values)[i] += 0;             \
  }                                                                    \
  static const Kind T##_kind = {sizeof(T), fill_##T, combine_##T, drop_sign_of_zero_##T};

INTEGERS(int8_t)
INTEGERS(int16_t)
INTEGERS(int32_t)
INTEGERS(int64_t)
INTEGERS(uint8_t)
INTEGERS(uint16_t)
INTEGERS(uint32_t)
INTEGERS(uint64_t)
FLOATS(float)
FLOATS(double)

static void* filled(const Kind* kind, int of) {
  void* const result = memory(kCount * kind->size);
  kind->fill(result, of);
  return result;
}

static void* reduced(const Kind* kind, MPI_Op op) {
  void* const result = filled(kind, 0);
  for (int of = 1; of < ranks; ++of) {
    void* const more = filled(kind, of);
    kind->combine(result, more, op);
    free(more);
  }
  kind->drop_sign_of_zero(result);
  return result;
}

/* Except the sign of zeros, which special_values.c tests. */
static void check_elements(const char* what, const Kind* kind, void* got, const void* expected) {
  kind->drop_sign_of_zero(got);
  check_bytes(what, got, expected, kCount * kind->size);
}

static int root = 0;

static void check_reductions(MPI_Datatype type, const Kind* kind, MPI_Op op) {
  char what[MPI_MAX_OBJECT_NAME];
  int length;
  MPI_Type_get_name(type, what, &length);
  const size_t bytes = kCount * kind->size;
  void* const expected = reduced(kind, op);
  void* const own = filled(kind, rank);
  void* const own_kept = filled(kind, rank);
  void* const out = memory(bytes);
  void* const untouched = memory(bytes);
  root = (root + 1) % ranks;

  MPI_Allreduce(own, out, kCount, type, op, MPI_COMM_WORLD);
  check_elements(what, kind, out, expected);
  check_bytes(what, own, own_kept, bytes);

  memset(out, 0, bytes);
  MPI_Reduce(own, out, kCount, type, op, root, MPI_COMM_WORLD);
  check_elements(what, kind, out, rank == root ? expected : untouched);
  check_bytes(what, own, own_kept, bytes);

  if (rank == root)
    MPI_Reduce(MPI_IN_PLACE, own, kCount, type, op, root, MPI_COMM_WORLD);
  else
    MPI_Reduce(own, NULL, kCount, type, op, root, MPI_COMM_WORLD);
  check_elements(what, kind, own, rank == root ? expected : own_kept);

  kind->fill(own, rank);
  MPI_Allreduce(MPI_IN_PLACE, own, kCount, type, op, MPI_COMM_WORLD);
  check_elements(what, kind, own, expected);
  free(expected);
  free(own);
  free(own_kept);
  free(out);
  free(untouched);
}

static void check_arithmetic(MPI_Datatype type, const Kind* kind) {
  check_reductions(type, kind, MPI_SUM);
  check_reductions(type, kind, MPI_PROD);
  check_reductions(type, kind, MPI_MIN);
  check_reductions(type, kind, MPI_MAX);
}

static void check_bitwise(MPI_Datatype type, const Kind* kind) {
  check_reductions(type, kind, MPI_BAND);
  check_reductions(type, kind, MPI_BOR);
  check_reductions(type, kind, MPI_BXOR);
}

static void check_integers(MPI_Datatype type, const Kind* kind) {
  check_arithmetic(type, kind);
  check_bitwise(type, kind);
}

static void add_doubles(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((double*)inout)[i] += ((double*)in)[i];
}

/* What Sluice does not have: logical operations, pairs, the program's own; and small tensors. */
static void check_what_passes_through(void) {
  enum { kPairs = 1000 };
  int* const flags = memory(kPairs * sizeof(int));
  for (int i = 0; i < kPairs; ++i) flags[i] = i % ranks != rank;
  MPI_Allreduce(MPI_IN_PLACE, flags, kPairs, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
  for (int i = 0; i < kPairs; ++i) check("no flag is set on all ranks", flags[i] == 0);

  int* const pairs = memory(2 * kPairs * sizeof(int));
  for (int i = 0; i < kPairs; ++i) {
    pairs[2 * i] = (rank + i) % ranks;
    pairs[2 * i + 1] = rank;
  }
  MPI_Allreduce(MPI_IN_PLACE, pairs, kPairs, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
  for (int i = 0; i < kPairs; ++i)
    check("the least is where it is", pairs[2 * i + 1] == (ranks - i % ranks) % ranks);

  double* const sums = memory(kPairs * sizeof(double));
  for (int i = 0; i < kPairs; ++i) sums[i] = rank + i;
  MPI_Op addition;
  MPI_Op_create(add_doubles, 1, &addition);
  MPI_Allreduce(MPI_IN_PLACE, sums, kPairs, MPI_DOUBLE, addition, MPI_COMM_WORLD);
  MPI_Op_free(&addition);
  for (int i = 0; i < kPairs; ++i)
    check("own sums are right", sums[i] == ranks * (ranks - 1) / 2 + ranks * i);

  double one = 1;
  MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  check("small sums are right", one == ranks);
  MPI_Allreduce(MPI_IN_PLACE, NULL, 0, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  free(flags);
  free(pairs);
  free(sums);
}

int main(void) {
  start();
  const Kind* const kind_of_long = sizeof(long) == 8 ? &int64_t_kind : &int32_t_kind;
  const Kind* const kind_of_unsigned_long = sizeof(long) == 8 ? &uint64_t_kind : &uint32_t_kind;
  check_arithmetic(MPI_FLOAT, &float_kind);
  check_arithmetic(MPI_DOUBLE, &double_kind);
  check_arithmetic(MPI_REAL, &float_kind);
  check_arithmetic(MPI_REAL4, &float_kind);
  check_arithmetic(MPI_REAL8, &double_kind);
  check_arithmetic(MPI_DOUBLE_PRECISION, &double_kind);
  check_integers(MPI_SIGNED_CHAR, &int8_t_kind);
  check_integers(MPI_INT8_T, &int8_t_kind);
  check_integers(MPI_SHORT, &int16_t_kind);
  check_integers(MPI_INT16_T, &int16_t_kind);
  check_integers(MPI_INT, &int32_t_kind);
  check_integers(MPI_INT32_T, &int32_t_kind);
  check_integers(MPI_INTEGER, &int32_t_kind);
  check_integers(MPI_LONG, kind_of_long);
  check_integers(MPI_LONG_LONG, &int64_t_kind);
  check_integers(MPI_INT64_T, &int64_t_kind);
  check_integers(MPI_INTEGER8, &int64_t_kind);
  check_integers(MPI_UNSIGNED_CHAR, &uint8_t_kind);
  check_integers(MPI_UINT8_T, &uint8_t_kind);
  check_integers(MPI_UNSIGNED_SHORT, &uint16_t_kind);
  check_integers(MPI_UINT16_T, &uint16_t_kind);
  check_integers(MPI_UNSIGNED, &uint32_t_kind);
  check_integers(MPI_UINT32_T, &uint32_t_kind);
  /* Without MIN and MAX, for which Open MPI takes it as signed up to 4.1.4 (its issue 10276). */
  check_reductions(MPI_UNSIGNED_LONG, kind_of_unsigned_long, MPI_SUM);
  check_reductions(MPI_UNSIGNED_LONG, kind_of_unsigned_long, MPI_PROD);
  check_bitwise(MPI_UNSIGNED_LONG, kind_of_unsigned_long);
  check_integers(MPI_UNSIGNED_LONG_LONG, &uint64_t_kind);
  check_integers(MPI_UINT64_T, &uint64_t_kind);
  check_bitwise(MPI_BYTE, &uint8_t_kind);
  check_what_passes_through();
  return finish();
}
