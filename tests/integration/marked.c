/*
 * A rank whose gradients are the same eight bytes, "GRADIENT", again and again: whoever reads the network can look for
 * them. Checks every sum. Run by encrypted.sh, nat.sh and internet_faults.sh: marked STEPS [SECONDS], which pass
 * between steps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zenps/zenps.h>

enum { ROWS = 8192, WIDTH = 4, TOUCHED = 2048 };

static int rank;

static void must(zenps_status_t status, const char *what) {
  if (status == ZENPS_OK) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, zenps_last_error()->text);
  exit(1);
}

static void round_run(zenps_tensor_t *tensor, uint64_t step, int world) {
  static int64_t rows[TOUCHED];
  static double values[TOUCHED * WIDTH], sums[ROWS * WIDTH];
  double mark;
  zenps_grad_t in, out;
  zenps_request_t *request;
  memcpy(&mark, "GRADIENT", sizeof mark);
  for (unsigned i = 0; i < TOUCHED; i++) rows[i] = 4 * i;
  for (unsigned i = 0; i < TOUCHED * WIDTH; i++) values[i] = mark;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = ZENPS_ROWS;
  in.nnz = TOUCHED;
  in.row_ids = rows;
  in.values = values;
  out.layout = ZENPS_DENSE;
  out.values = sums;
  must(zenps_allreduce(tensor, step, &in, &out, &request), "allreduce");
  must(zenps_wait(request, -1), "wait");
  zenps_request_free(request);
  for (unsigned i = 0; i < ROWS * WIDTH; i++) {
    const double wanted = i / WIDTH % 4 == 0 ? mark * world : 0;
    if (sums[i] == wanted) continue;
    fprintf(stderr, "rank %d: step %llu: value %u is %g: it must be %g\n", rank, (unsigned long long)step, i, sums[i],
            wanted);
    exit(1);
  }
}

int main(int argc, char **argv) {
  const uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 10;
  const unsigned pause_s = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
  zenps_job_t *job;
  zenps_tensor_t *tensor;
  must(zenps_open(NULL, &job), "open");
  rank = zenps_rank(job);
  must(zenps_tensor_open(job, "marked", ROWS, WIDTH, ZENPS_F64, NULL, &tensor), "tensor_open");
  for (uint64_t step = 1; step <= steps; step++) {
    round_run(tensor, step, zenps_world(job));
    if (rank == 0) printf("step %llu\n", (unsigned long long)step);
    fflush(stdout);
    if (step < steps) sleep(pause_s);
  }
  printf("provider %s, %llu right sums\n", zenps_provider(job), (unsigned long long)steps);
  zenps_close(job);
  return 0;
}
