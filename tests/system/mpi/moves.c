/* MPI_Bcast and MPI_Allgather: predefined types, derived ones with gaps and in another order than
 * memory's, and ranks that describe the same elements differently. */
#include "check.h"

enum { kCount = 3000 };

static int* ints_of(int of) {
  int* const result = memory(kCount * sizeof(int));
  for (size_t i = 0; i < kCount; ++i) result[i] = (int)bits(of, i);
  return result;
}

static MPI_Datatype committed(MPI_Datatype type) {
  MPI_Type_commit(&type);
  return type;
}

/* Every second int of twice as many. */
static MPI_Datatype with_gaps(void) {
  MPI_Datatype type;
  MPI_Type_vector(kCount, 1, 2, MPI_INT, &type);
  return committed(type);
}

/* Without gaps, but the second half comes first. */
static MPI_Datatype halves_swapped(void) {
  const int displacements[] = {kCount / 2, 0};
  MPI_Datatype type;
  MPI_Type_create_indexed_block(2, kCount / 2, displacements, MPI_INT, &type);
  return committed(type);
}

static void check_predefined(const char* what, MPI_Datatype type, size_t size, int count) {
  const size_t bytes = (size_t)count * size;
  for (int root = 0; root < ranks; ++root) {
    unsigned char* const buffer = memory(bytes);
    unsigned char* const expected = memory(bytes);
    for (size_t i = 0; i < bytes; ++i) expected[i] = (unsigned char)bits(root, i);
    if (rank == root) memcpy(buffer, expected, bytes);
    MPI_Bcast(buffer, count, type, root, MPI_COMM_WORLD);
    check_bytes(what, buffer, expected, bytes);
    free(buffer);
    free(expected);
  }
}

/* The root's ints are described as they lie; the others' have gaps, which do not change. */
static void check_gaps(void) {
  MPI_Datatype type = with_gaps();
  int* const expected = ints_of(1);
  if (rank == 1) {
    MPI_Bcast(expected, kCount, MPI_INT, 1, MPI_COMM_WORLD);
  } else {
    int* const spread = memory(2 * kCount * sizeof(int));
    for (int i = 0; i < kCount; ++i) spread[2 * i + 1] = i;
    MPI_Bcast(spread, 1, type, 1, MPI_COMM_WORLD);
    for (int i = 0; i < kCount; ++i)
      check("elements have moved", spread[2 * i] == expected[i] && spread[2 * i + 1] == i);
    free(spread);
  }
  MPI_Type_free(&type);
  free(expected);
}

/* The root lists its elements in another order than they lie in memory. */
static void check_order(void) {
  MPI_Datatype type = halves_swapped();
  int* const original = ints_of(0);
  if (rank == 0) {
    MPI_Bcast(original, 1, type, 0, MPI_COMM_WORLD);
  } else {
    int* const buffer = memory(kCount * sizeof(int));
    MPI_Bcast(buffer, kCount, MPI_INT, 0, MPI_COMM_WORLD);
    check_bytes("halves", buffer, original + kCount / 2, kCount / 2 * sizeof(int));
    check_bytes("halves", buffer + kCount / 2, original, kCount / 2 * sizeof(int));
    free(buffer);
  }
  MPI_Type_free(&type);
  free(original);
}

/* Elements that are named by their absolute addresses. */
static void check_bottom(void) {
  int* const buffer = ints_of(rank == 2 ? 2 : 0);
  int* const expected = ints_of(2);
  const int length = kCount;
  MPI_Aint address;
  MPI_Get_address(buffer, &address);
  MPI_Datatype type;
  MPI_Type_create_hindexed(1, &length, &address, MPI_INT, &type);
  MPI_Type_commit(&type);
  MPI_Bcast(MPI_BOTTOM, 1, type, 2, MPI_COMM_WORLD);
  check_bytes("MPI_BOTTOM", buffer, expected, kCount * sizeof(int));
  MPI_Type_free(&type);
  free(buffer);
  free(expected);
}

/* A double and an int, with a gap after them. */
static void check_pairs(void) {
  struct Pair {
    double value;
    int index;
  }* const pairs = memory(kCount * sizeof *pairs);
  for (int i = 0; i < kCount && rank == 0; ++i) {
    pairs[i].value = i;
    pairs[i].index = -i;
  }
  MPI_Bcast(pairs, kCount, MPI_DOUBLE_INT, 0, MPI_COMM_WORLD);
  for (int i = 0; i < kCount; ++i)
    check("pairs have moved", pairs[i].value == i && pairs[i].index == -i);
  free(pairs);
}

static void check_gathered(const char* what, const int* all) {
  for (int of = 0; of < ranks; ++of) {
    int* const expected = ints_of(of);
    check_bytes(what, all + of * kCount, expected, kCount * sizeof(int));
    free(expected);
  }
}

static void check_all_gather(void) {
  int* const own = ints_of(rank);
  int* const all = memory((size_t)ranks * kCount * sizeof(int));
  MPI_Allgather(own, kCount, MPI_INT, all, kCount, MPI_INT, MPI_COMM_WORLD);
  check_gathered("all_gather", all);

  memset(all, 0, (size_t)ranks * kCount * sizeof(int));
  memcpy(all + rank * kCount, own, kCount * sizeof(int));
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, kCount, MPI_INT, MPI_COMM_WORLD);
  check_gathered("all_gather in place", all);
  free(own);
  free(all);
}

static void check_all_gather_of_bytes(void) {
  enum { kBytes = 1001 };
  unsigned char own[kBytes];
  unsigned char* const all = memory((size_t)ranks * kBytes);
  for (size_t i = 0; i < kBytes; ++i) own[i] = (unsigned char)bits(rank, i);
  MPI_Allgather(own, kBytes, MPI_BYTE, all, kBytes, MPI_CHAR, MPI_COMM_WORLD);
  for (int of = 0; of < ranks; ++of)
    for (size_t i = 0; i < kBytes; ++i)
      check("bytes are gathered", all[(size_t)of * kBytes + i] == (unsigned char)bits(of, i));
  free(all);
}

/* Parts with gaps, `2 * kCount` ints apart: sent from contiguous memory, and from such parts. */
static void check_all_gather_with_gaps(void) {
  MPI_Datatype gaps = with_gaps();
  MPI_Datatype part;
  MPI_Type_create_resized(gaps, 0, 2 * kCount * (MPI_Aint)sizeof(int), &part);
  MPI_Type_commit(&part);
  int* const own = ints_of(rank);
  int* const all = memory((size_t)ranks * 2 * kCount * sizeof(int));
  int* const together = memory((size_t)ranks * kCount * sizeof(int));
  for (int in_place = 0; in_place < 2; ++in_place) {
    memset(all, 0, (size_t)ranks * 2 * kCount * sizeof(int));
    if (in_place) {
      for (int i = 0; i < kCount; ++i) all[rank * 2 * kCount + 2 * i] = own[i];
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, part, MPI_COMM_WORLD);
    } else {
      MPI_Allgather(own, kCount, MPI_INT, all, 1, part, MPI_COMM_WORLD);
    }
    for (int i = 0; i < ranks * kCount; ++i) {
      together[i] = all[2 * i];
      check("gaps stay as they are", all[2 * i + 1] == 0);
    }
    check_gathered("all_gather with gaps", together);
  }
  MPI_Type_free(&gaps);
  MPI_Type_free(&part);
  free(own);
  free(all);
  free(together);
}

static void check_type_is_refused(int code) {
  int class;
  MPI_Error_class(code, &class);
  check("an uncommitted datatype is refused", class == MPI_ERR_TYPE);
}

/* All ranks get an error; none waits for another one. Open MPI 4.1 itself crashes when it receives
 * such elements. */
static void check_uncommitted(void) {
  MPI_Datatype type;
  MPI_Type_vector(kCount, 1, 2, MPI_INT, &type);
  int* const all = memory((size_t)ranks * 2 * kCount * sizeof(int));
  int* const own = ints_of(rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check_type_is_refused(MPI_Bcast(all, 1, type, 0, MPI_COMM_WORLD));
  check_type_is_refused(
      MPI_Allgather(all + ranks * kCount, 1, type, all, kCount, MPI_INT, MPI_COMM_WORLD));
  if (getenv("LD_PRELOAD") != NULL) {
    check_type_is_refused(MPI_Allgather(own, kCount, MPI_INT, all, 1, type, MPI_COMM_WORLD));
    check_type_is_refused(
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, type, MPI_COMM_WORLD));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  MPI_Type_free(&type);
  free(own);
  free(all);
}

int main(void) {
  start();
  check_predefined("MPI_FLOAT", MPI_FLOAT, 4, kCount);
  check_predefined("MPI_BYTE", MPI_BYTE, 1, 4001);
  check_predefined("MPI_CHAR", MPI_CHAR, 1, 4000);
  check_predefined("MPI_C_BOOL", MPI_C_BOOL, 1, 4000);
  check_predefined("MPI_LOGICAL", MPI_LOGICAL, 4, kCount);
  check_predefined("MPI_C_DOUBLE_COMPLEX", MPI_C_DOUBLE_COMPLEX, 16, kCount);
  check_predefined("a small MPI_INT", MPI_INT, 4, 10);
  check_gaps();
  check_order();
  check_bottom();
  check_pairs();
  check_all_gather();
  check_all_gather_of_bytes();
  check_all_gather_with_gaps();
  check_uncommitted();
  return finish();
}
