/* An MPI program that uses Sluice itself, too: both share this process's context. */
#include "../../../bindings/c/include/sluice/sluice.h"
#include "check.h"

/* In the preloaded library; the program is not linked with it. */
#pragma weak sluice_options_create
#pragma weak sluice_options_from_environment
#pragma weak sluice_options_destroy
#pragma weak sluice_context_share
#pragma weak sluice_context_close
#pragma weak sluice_communicator_join
#pragma weak sluice_communicator_destroy
#pragma weak sluice_barrier
#pragma weak sluice_work_wait
#pragma weak sluice_work_destroy

static const int everyone[] = {0, 1};
static sluice_error error;

static void check_ok(const char* what, sluice_status status) {
  if (status != SLUICE_OK) fprintf(stderr, "%s\n", error.message);
  check(what, status == SLUICE_OK);
}

int main(void) {
  start();
  check_sum("the sum", MPI_COMM_WORLD, everyone, ranks, 5000);
  sluice_options* const options = sluice_options_create();
  sluice_context* context = NULL;
  sluice_communicator* job = NULL;
  sluice_work* work = NULL;
  check_ok("the environment", sluice_options_from_environment(options, &error));
  check_ok("sharing", sluice_context_share(options, &context, &error));
  check_ok("joining", sluice_communicator_join(context, options, &job, &error));
  check_ok("a barrier", sluice_barrier(job, &work, &error));
  check_ok("waiting", sluice_work_wait(work, SLUICE_FOREVER, &error));
  sluice_work_destroy(work);
  sluice_communicator_destroy(job);
  check_ok("closing", sluice_context_close(context, &error));
  sluice_options_destroy(options);
  check_sum("another sum", MPI_COMM_WORLD, everyone, ranks, 5000);
  return finish();
}
