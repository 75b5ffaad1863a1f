/* Sums until one fails: `until_an_error returned | fatal  blocking | request`. */
#include "check.h"

enum { kCount = 5000 };

static int sum_once(float* numbers, int by_request) {
  for (int i = 0; i < kCount; ++i) numbers[i] = 1;
  if (!by_request)
    return MPI_Allreduce(MPI_IN_PLACE, numbers, kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Request request;
  const int code =
      MPI_Iallreduce(MPI_IN_PLACE, numbers, kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  return code == MPI_SUCCESS ? MPI_Wait(&request, MPI_STATUS_IGNORE) : code;
}

int main(int argc, char** argv) {
  int provided;
  if (argc != 3) return 2;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  know_the_world();
  const int by_request = strcmp(argv[2], "request") == 0;
  if (strcmp(argv[1], "returned") == 0) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  float* const numbers = memory(kCount * sizeof(float));
  int code = sum_once(numbers, by_request);
  check("the first sum is right", code == MPI_SUCCESS && numbers[7] == ranks);
  printf("rank %d is under way\n", rank);
  fflush(stdout);
  while (code == MPI_SUCCESS) code = sum_once(numbers, by_request);
  char text[MPI_MAX_ERROR_STRING];
  char text_of_class[MPI_MAX_ERROR_STRING];
  int class, length;
  MPI_Error_class(code, &class);
  MPI_Error_string(code, text, &length);
  MPI_Error_string(class, text_of_class, &length);
  printf("rank %d: %s: %s\n", rank, text_of_class, text);
  free(numbers);
  return MPI_Finalize();
}
