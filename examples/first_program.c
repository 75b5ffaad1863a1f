/* first_program.cpp in C: ./scripts/local-cluster --workers 4 -- first-program-c */
#include <inttypes.h>
#include <stdio.h>

#include <sluice/sluice.h>

#define ELEMENTS 1000000

static sluice_status run(sluice_context* context, const sluice_options* options,
                         sluice_error* error) {
  static float gradients[ELEMENTS]; /* zero but for one element */
  sluice_communicator* job = NULL;
  sluice_work* sum = NULL;
  sluice_op_statistics cost;
  sluice_status status = sluice_communicator_join(context, options, &job, error);
  if (status == SLUICE_OK) {
    gradients[42] = (float)(sluice_communicator_rank(job) + 1);
    status =
        sluice_all_reduce(job, gradients, gradients, ELEMENTS, SLUICE_FLOAT32, NULL, &sum, error);
  }
  if (status == SLUICE_OK) status = sluice_work_wait(sum, SLUICE_FOREVER, error);
  if (status == SLUICE_OK) status = sluice_work_statistics(sum, &cost, sizeof cost, error);
  if (status == SLUICE_OK)
    printf("the ranks' sum is %g; this one sent %" PRIu64 " bytes of %zu\n", gradients[42],
           cost.bytes_sent, sizeof gradients);
  sluice_work_destroy(sum);
  sluice_communicator_destroy(job);
  return status;
}

int main(void) {
  sluice_error error;
  sluice_options* options = sluice_options_create();
  sluice_context* context = NULL;
  sluice_status status = sluice_options_from_environment(options, &error);
  if (status == SLUICE_OK) status = sluice_context_open(options, &context, &error);
  if (status == SLUICE_OK) {
    status = run(context, options, &error);
    sluice_context_close(context, NULL);
  }
  sluice_options_destroy(options);
  if (status != SLUICE_OK) fprintf(stderr, "%s\n", error.message);
  return status == SLUICE_OK ? 0 : 1;
}
