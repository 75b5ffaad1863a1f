/* Memory of MPI_Alloc_mem: `memory shared` or `memory ordinary` says where it must lie. */
#include <limits.h>

#include "check.h"

#define COUNT 100000

/* Whether it lies in a region that other ranks may map. */
static int is_shared(const void* memory) {
  FILE* const maps = fopen("/proc/self/maps", "r");
  char line[4096];
  int found = 0;
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    unsigned long first = 0, end = 0;
    if (sscanf(line, "%lx-%lx", &first, &end) != 2) continue;
    if ((unsigned long)memory >= first && (unsigned long)memory < end)
      found = strstr(line, "memfd:sluice-arena") != NULL;
  }
  if (maps != NULL) fclose(maps);
  return found;
}

int main(int argc, char** argv) {
  start();
  const int shared = argc > 1 && strcmp(argv[1], "shared") == 0;
  int* numbers = NULL;
  int* none = NULL;
  check("allocated",
        MPI_Alloc_mem(COUNT * sizeof *numbers, MPI_INFO_NULL, &numbers) == MPI_SUCCESS);
  check("where it lies", is_shared(numbers) == shared);
  for (int i = 0; i < COUNT; ++i) numbers[i] = (int)(bits(rank, (size_t)i) & 0xffff);
  MPI_Allreduce(MPI_IN_PLACE, numbers, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < COUNT; ++i) {
    int sum = 0;
    for (int member = 0; member < ranks; ++member) sum += (int)(bits(member, (size_t)i) & 0xffff);
    check("the sum", numbers[i] == sum);
  }
  check("freed", MPI_Free_mem(numbers) == MPI_SUCCESS);

  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check("too much", MPI_Alloc_mem(LONG_MAX / 2, MPI_INFO_NULL, &none) != MPI_SUCCESS);
  check("less than nothing", MPI_Alloc_mem(-1, MPI_INFO_NULL, &none) != MPI_SUCCESS);
  check("no pointer", MPI_Alloc_mem(8, MPI_INFO_NULL, NULL) != MPI_SUCCESS);
  return finish();
}
