/*
 * A trainer that runs until it is told to stop, and checks every sum: run by coordinator_restart.sh and why.sh, as each
 * rank of a job. While FOLDER/hang-RANK exists that rank lives and calls nothing; while FOLDER/late-RANK exists it
 * comes 20 ms later in each step, and while FOLDER/busy-RANK exists it computes for so long. Rank 0 looks for
 * FOLDER/stop ahead of each round and tells the others through the round itself, so that all stop at the same step; it
 * keeps the number of rounds that are behind it in FOLDER/rounds. Then they open a further tensor, sum that too, meet
 * at a barrier, and leave.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zenps/zenps.h>

enum { ROWS = 4096, WIDTH = 2, TOUCHED = 64, LATE_ROUNDS = 8, GO = 1, STOP = 2 };

static zenps_job_t *job;
static const char *folder;

static void must(zenps_status_t status, const char *what) {
  if (status == ZENPS_OK) return;
  fprintf(stderr, "rank %d: %s: %s\n", zenps_rank(job), what, zenps_last_error()->text);
  exit(1);
}

/* Small whole numbers: their sums are exact in any order. */
static uint32_t row_of(int rank, uint64_t step, unsigned i) {
  return 1 + (uint32_t)((step * 37 + (unsigned)rank * 11u + i * 61u) % (ROWS - 1));
}
static float value_of(int rank, uint64_t step, uint32_t row, unsigned column) {
  return (float)((unsigned)(rank + 1) * (row % 7 + 1) + (unsigned)(step % 5) + column);
}

static void check(int world, uint64_t step, const float *got) {
  static float wanted[ROWS * WIDTH];
  memset(wanted, 0, sizeof wanted);
  wanted[0] = got[0]; /* what rank 0 tells */
  for (int rank = 0; rank < world; rank++)
    for (unsigned i = 0; i < TOUCHED; i++)
      for (unsigned column = 0; column < WIDTH; column++) {
        const uint32_t row = row_of(rank, step, i);
        wanted[row * WIDTH + column] += value_of(rank, step, row, column);
      }
  if (memcmp(wanted, got, sizeof wanted) == 0) return;
  fprintf(stderr, "rank %d: step %llu: the sum is wrong\n", zenps_rank(job), (unsigned long long)step);
  exit(1);
}

/* What rank 0 tells. */
static int round_run(zenps_tensor_t *tensor, uint64_t step, int told) {
  static int64_t rows[TOUCHED + 1];
  static float values[(TOUCHED + 1) * WIDTH], sums[ROWS * WIDTH];
  const int rank = zenps_rank(job);
  zenps_grad_t in, out;
  zenps_request_t *request;
  unsigned n = 0;
  if (rank == 0) {
    rows[n] = 0;
    values[0] = (float)told;
    values[1] = 0;
    n++;
  }
  for (unsigned i = 0; i < TOUCHED; i++, n++) {
    rows[n] = row_of(rank, step, i);
    for (unsigned column = 0; column < WIDTH; column++)
      values[n * WIDTH + column] = value_of(rank, step, (uint32_t)rows[n], column);
  }
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = ZENPS_ROWS;
  in.nnz = n;
  in.row_ids = rows;
  in.values = values;
  out.layout = ZENPS_DENSE;
  out.values = sums;
  must(zenps_allreduce(tensor, step, &in, &out, &request), "allreduce");
  must(zenps_wait(request, -1), "wait");
  zenps_request_free(request);
  check(zenps_world(job), step, sums);
  return (int)sums[0];
}

static zenps_tensor_t *tensor_open(const char *name) {
  zenps_tensor_t *tensor;
  must(zenps_tensor_open(job, name, ROWS, WIDTH, ZENPS_F32, NULL, &tensor), name);
  return tensor;
}

static void tell_rounds(uint64_t n) {
  static int fd = -1;
  char path[512], text[24];
  snprintf(path, sizeof path, "%s/rounds", folder);
  if (fd < 0) fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  snprintf(text, sizeof text, "%020llu\n", (unsigned long long)n);
  if (fd < 0 || pwrite(fd, text, 21, 0) != 21) perror(path);
}

static int is_told(const char *what, int rank) {
  char path[512];
  snprintf(path, sizeof path, rank < 0 ? "%s/%s" : "%s/%s-%d", folder, what, rank);
  return access(path, F_OK) == 0;
}

static int is_told_to_stop(void) {
  return is_told("stop", -1);
}

/* Rounds without a pause would take the processors of what is tested. */
static void compute(int rank) {
  usleep(5000);
  while (is_told("hang", rank)) usleep(10000);
  if (is_told("late", rank)) usleep(20000);
  const clock_t begun = clock();
  while (is_told("busy", rank) && clock() - begun < CLOCKS_PER_SEC / 50) continue;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  folder = argv[1];
  must(zenps_open(NULL, &job), "open");
  const int rank = zenps_rank(job);
  zenps_tensor_t *tensor = tensor_open("first");
  uint64_t step = 0;
  while (round_run(tensor, step, rank == 0 && is_told_to_stop() ? STOP : GO) != STOP) {
    step++;
    if (rank == 0) tell_rounds(step);
    compute(rank);
  }
  tensor = tensor_open("late");
  for (uint64_t late = 0; late < LATE_ROUNDS; late++) round_run(tensor, late, GO);
  must(zenps_barrier(job), "barrier");
  zenps_close(job);
  if (rank == 0) printf("%llu rounds, and %d of a further tensor\n", (unsigned long long)step + 1, LATE_ROUNDS);
  return 0;
}
