/*
 * chaos-rank: a rank that sums, and checks every sum, until it is told to end. Run by tests/chaos/run.
 *
 *   chaos-rank ADDRESS JOB RANK WORLD SEED WINDOW WAIT_MS END
 *
 * WINDOW steps are in flight at a time. END is a file: when rank 0 finds it, all ranks end after the same step. WAIT_MS
 * is how long an operation may take. The environment's CHAOS_PAUSE_MS is a pause after each step, for tests in which a
 * job only has to go on. Lines of standard output, times in microseconds of the monotonic clock:
 *
 *   in TIME                      All ranks are in. Tensors are open.
 *   step N BEGIN END DIGEST      The sums of the step are right.
 *   wrong N TENSOR WHAT          A sum is wrong.
 *   error N STATUS TEXT          An operation has failed. N 0: zenps_open() or zenps_tensor_open().
 *   hang N TENSOR                An operation did not end.
 *   left TIME DESCRIPTORS KIB    The job is closed. Descriptors and resident memory, at the start and the end.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/chaos/sums.h"

enum { N_TENSORS = 4, WINDOW_MAX = 8 };
enum { FAULT_USAGE = 2, FAULT_ERROR = 3, FAULT_WRONG = 4, FAULT_HANG = 5 };

/* Slices of the first are so large that they are read, not sent along. */
static const struct sums_spec specs[N_TENSORS] = {
    {.name = "rows", .scheme = "balanced", .rows = 200000, .n_strips = 4000, .width = 8, .partitions = 8},
    {.name = "dense", .scheme = "balanced", .rows = 3000, .n_strips = 150, .width = 1, .is_dense = true},
    {.name = "ranges", .scheme = "sparse-ps", .rows = 5000, .n_strips = 200, .width = 3},
    {.name = "all", .scheme = "dense-ps", .rows = 600, .n_strips = 100, .width = 2, .is_dense = true}};

/* One tensor of a step in flight. */
struct flight {
  zenps_grad_t in, out;
  zenps_request_t *request;
};

struct step {
  uint64_t begin_us;
  struct flight flights[N_TENSORS];
  float wish[2], wished[2]; /* each rank adds 1 to the first; to the second rank 0 does, when all are to end */
  struct flight wishing;
};

struct rank {
  const char *end_path;
  int rank, world, wait_ms;
  uint64_t seed, window;
  zenps_job_t *job;
  zenps_tensor_t *tensors[N_TENSORS], *wish;
  struct step steps[WINDOW_MAX];
};

static uint64_t now_us(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

__attribute__((noreturn, format(printf, 2, 3))) static void end_as(int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  fflush(stdout);
  _exit(status);
}

static void must(zenps_status_t status, uint64_t step) {
  if (status != ZENPS_OK) end_as(FAULT_ERROR, "error %" PRIu64 " %d %s", step, status, zenps_last_error()->text);
}

static void *room(size_t bytes) {
  void *const memory = calloc(1, bytes);
  if (!memory) end_as(FAULT_ERROR, "error 0 %d no memory for gradients", ZENPS_ERR_NOMEM);
  return memory;
}

/* ------------------------------------------------------------ what a process holds */

static unsigned count_descriptors(void) {
  DIR *const open = opendir("/proc/self/fd");
  unsigned n = 0;
  while (open && readdir(open)) n++;
  if (open) closedir(open);
  return n;
}

static unsigned long resident_kib(void) {
  FILE *const in = fopen("/proc/self/statm", "re");
  unsigned long pages = 0;
  if (in && fscanf(in, "%*u %lu", &pages) != 1) pages = 0;
  if (in) fclose(in);
  return pages * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
}

/* ------------------------------------------------------------ a step */

static struct sums_of sums_of(const struct rank *rank, uint64_t step, uint32_t tensor) {
  return (struct sums_of){.seed = rank->seed, .step = step, .tensor = tensor, .world = rank->world};
}

static void flight_start(const struct rank *rank, uint64_t step, uint32_t t, struct flight *flight) {
  const struct sums_spec *const spec = &specs[t];
  const struct sums_of of = sums_of(rank, step, t);
  sums_gradient(spec, &of, rank->rank, &flight->in);
  void *const values = flight->out.values;
  ZENPS_GRAD_INIT(&flight->out);
  flight->out.layout = spec->is_dense ? ZENPS_DENSE : ZENPS_ROWS;
  if (spec->is_dense) flight->out.values = values;
  must(zenps_allreduce(rank->tensors[t], step, &flight->in, &flight->out, &flight->request), step);
}

static void await(const struct rank *rank, uint64_t step, const char *name, zenps_request_t *request) {
  const zenps_status_t status = zenps_wait(request, rank->wait_ms);
  if (status == ZENPS_IN_PROGRESS) end_as(FAULT_HANG, "hang %" PRIu64 " %s", step, name);
  must(status, step);
}

static void flight_end(const struct rank *rank, uint64_t step, uint32_t t, struct flight *flight, uint64_t *digest_p) {
  const struct sums_of of = sums_of(rank, step, t);
  char what[160];
  uint64_t digest;
  await(rank, step, specs[t].name, flight->request);
  if (!sums_check(&specs[t], &of, &flight->out, &digest, what, sizeof what))
    end_as(FAULT_WRONG, "wrong %" PRIu64 " %s %s", step, specs[t].name, what);
  *digest_p = *digest_p * 31 + digest;
  zenps_request_free(flight->request);
}

static void step_start(struct rank *rank, uint64_t number) {
  struct step *const step = &rank->steps[number % rank->window];
  step->begin_us = now_us();
  for (uint32_t t = 0; t < N_TENSORS; t++) flight_start(rank, number, t, &step->flights[t]);
  struct flight *const wishing = &step->wishing;
  ZENPS_GRAD_INIT(&wishing->in);
  ZENPS_GRAD_INIT(&wishing->out);
  wishing->in.layout = wishing->out.layout = ZENPS_DENSE;
  step->wish[0] = 1;
  step->wish[1] = rank->rank == 0 && access(rank->end_path, F_OK) == 0;
  wishing->in.values = step->wish;
  wishing->out.values = step->wished;
  must(zenps_allreduce(rank->wish, number, &wishing->in, &wishing->out, &wishing->request), number);
}

/* Returns whether all are to end. */
static bool step_end(struct rank *rank, uint64_t number) {
  struct step *const step = &rank->steps[number % rank->window];
  uint64_t digest = 0;
  for (uint32_t t = 0; t < N_TENSORS; t++) flight_end(rank, number, t, &step->flights[t], &digest);
  await(rank, number, "wish", step->wishing.request);
  zenps_request_free(step->wishing.request);
  if (step->wished[0] != (float)rank->world || (step->wished[1] != 0 && step->wished[1] != 1))
    end_as(FAULT_WRONG, "wrong %" PRIu64 " wish %a %a", number, (double)step->wished[0], (double)step->wished[1]);
  printf("step %" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", number, step->begin_us, now_us(), digest);
  fflush(stdout);
  return step->wished[1] == 1;
}

/* ------------------------------------------------------------ a job */

static void open_tensors(struct rank *rank) {
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  for (uint32_t t = 0; t < N_TENSORS; t++) {
    const struct sums_spec *const spec = &specs[t];
    options.scheme = spec->scheme;
    options.partitions = spec->partitions;
    must(zenps_tensor_open(rank->job, spec->name, spec->rows, spec->width, ZENPS_F32, &options, &rank->tensors[t]), 0);
  }
  options.scheme = "balanced";
  options.partitions = 0;
  must(zenps_tensor_open(rank->job, "wish", 2, 1, ZENPS_F32, &options, &rank->wish), 0);
}

static void make_room(struct rank *rank) {
  for (uint64_t w = 0; w < rank->window; w++)
    for (uint32_t t = 0; t < N_TENSORS; t++) {
      const struct sums_spec *const spec = &specs[t];
      struct flight *const flight = &rank->steps[w].flights[t];
      const uint64_t n = spec->is_dense ? spec->rows : spec->n_strips;
      ZENPS_GRAD_INIT(&flight->in);
      flight->in.values = room(n * spec->width * sizeof(float));
      if (!spec->is_dense) flight->in.row_ids = room(n * sizeof *flight->in.row_ids);
      if (spec->is_dense) flight->out.values = room(n * spec->width * sizeof(float));
    }
}

static void run_steps(struct rank *rank) {
  const char *const pause_ms = getenv("CHAOS_PAUSE_MS");
  uint64_t begun = 0, ended = 0;
  for (bool is_ending = false; !is_ending || ended < begun;) {
    while (!is_ending && begun < ended + rank->window) step_start(rank, ++begun);
    is_ending |= step_end(rank, ++ended);
    if (pause_ms) usleep((useconds_t)atoi(pause_ms) * 1000);
  }
}

int main(int argc, char **argv) {
  struct rank rank;
  zenps_options_t options;
  memset(&rank, 0, sizeof rank);
  if (argc != 9) {
    fputs("usage: chaos-rank ADDRESS JOB RANK WORLD SEED WINDOW WAIT_MS END\n", stderr);
    return FAULT_USAGE;
  }
  ZENPS_OPTIONS_INIT(&options);
  options.coordinator = argv[1];
  options.job = argv[2];
  options.rank = rank.rank = atoi(argv[3]);
  options.world = rank.world = atoi(argv[4]);
  options.threads = 1;
  rank.seed = strtoull(argv[5], NULL, 10);
  rank.window = strtoull(argv[6], NULL, 10);
  rank.wait_ms = atoi(argv[7]);
  rank.end_path = argv[8];
  if (rank.window < 1 || rank.window > WINDOW_MAX || rank.world < 1 || rank.world > 16) {
    fprintf(stderr, "chaos-rank: WINDOW must be 1 to %d, WORLD 1 to 16\n", WINDOW_MAX);
    return FAULT_USAGE;
  }
  options.round_timeout_ms = options.join_timeout_ms = (uint64_t)rank.wait_ms;
  make_room(&rank);
  must(zenps_open(&options, &rank.job), 0);
  open_tensors(&rank);
  printf("in %" PRIu64 "\n", now_us());
  fflush(stdout);
  const unsigned descriptors = count_descriptors();
  const unsigned long kib = resident_kib();
  run_steps(&rank);
  const unsigned descriptors_end = count_descriptors();
  const unsigned long kib_end = resident_kib();
  zenps_close(rank.job);
  printf("left %" PRIu64 " %u %u %lu %lu\n", now_us(), descriptors, descriptors_end, kib, kib_end);
  return 0;
}
