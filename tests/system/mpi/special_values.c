/* The results of -0.0 and NaN: `special_values OPERATION VALUE VALUE VALUE ...` reduces tensors of
 * which each of three ranks has one of the values, and prints for each operation the resulting
 * elements: "-0.0 or +0.0". */
#include <math.h>

#include "check.h"

enum { kCount = 3000, kRanks = 3, kTextSize = 32, kDifferentMost = 4 };

static MPI_Op operation(const char* name) {
  if (strcmp(name, "SUM") == 0) return MPI_SUM;
  if (strcmp(name, "PROD") == 0) return MPI_PROD;
  return strcmp(name, "MIN") == 0 ? MPI_MIN : MPI_MAX;
}

static void write_text(char* out, double value) {
  if (isnan(value))
    snprintf(out, kTextSize, "NaN");
  else
    snprintf(out, kTextSize, "%s%.1f", value == 0 && !signbit(value) ? "+" : "", value);
}

/* Every other element of the second half is one on all ranks: so the blocks there are sent,
 * whatever the elements in question are. */
static int is_one(int i) {
  return i >= kCount / 2 && i % 2 == 0;
}

static void say_different(const double* values) {
  char texts[kDifferentMost][kTextSize];
  int different = 0;
  for (int i = 0; i < kCount; ++i) {
    char text[kTextSize];
    if (is_one(i)) continue;
    write_text(text, values[i]);
    int known = 0;
    while (known < different && strcmp(texts[known], text) != 0) ++known;
    check("few values are different", known < kDifferentMost);
    if (known == different) strcpy(texts[different++], text);
  }
  for (int i = 0; i < different; ++i) printf("%s%s", i == 0 ? "" : " or ", texts[i]);
  printf("\n");
}

int main(int argc, char** argv) {
  start();
  check("there are three ranks", ranks == kRanks);
  double* const own = memory(kCount * sizeof(double));
  double* const out = memory(kCount * sizeof(double));
  for (int at = 1; at + kRanks < argc; at += 1 + kRanks) {
    for (int i = 0; i < kCount; ++i) own[i] = is_one(i) ? 1 : strtod(argv[at + 1 + rank], NULL);
    MPI_Allreduce(own, out, kCount, MPI_DOUBLE, operation(argv[at]), MPI_COMM_WORLD);
    if (rank == 0) say_different(out);
  }
  free(own);
  free(out);
  return MPI_Finalize();
}
