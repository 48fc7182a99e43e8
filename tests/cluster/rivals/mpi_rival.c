/*
 * The work of zenps-perf, done by Open MPI: a dense MPI_Allreduce, or AGsparse: an allgather of every rank's rows,
 * added up by each. Row numbers and values are zenps-perf's own, and so is the JSON that rank 0 prints.
 */
#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "worker/tools/perf_array.h"
#include "worker/tools/perf_digest.h"
#include "worker/tools/perf_input.h"

enum { DENSE, ALLGATHER };

struct rival {
  struct perf_input_config config;
  struct perf_input *input;
  uint64_t rows, width, steps, warmup;
  int how, rank, world, verify;
  float *in, *out;         /* rows * width */
  double *sum;             /* verify: likewise, zero between steps */
  uint64_t digest;         /* verify: of all results so far */
  uint8_t *packed, *taken; /* allgather: own entries, and everybody's: a row's number, then its values */
  size_t cap_taken;
  int *counts, *starts; /* allgather: bytes of each rank, and where they begin */
};

static void *must(void *memory) {
  if (!memory) {
    fprintf(stderr, "mpi-rival: out of memory\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return memory;
}

static double cpu_ms(void) {
  struct timespec used = {0};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static void fill(struct rival *rival, uint64_t step) {
  uint64_t n;
  const int64_t *rows = perf_input_touched(rival->input, step, (uint32_t)rival->rank, &n);
  const uint64_t key = perf_value_key(rival->config.seed, step, (uint32_t)rival->rank, 0);
  const size_t entry = sizeof(uint32_t) + rival->width * sizeof(float);
  if (rival->how == DENSE) memset(rival->in, 0, rival->rows * rival->width * sizeof(float));
  for (uint64_t i = 0; i < n; i++) {
    const uint32_t row = (uint32_t)rows[i];
    float *values = rival->how == DENSE ? rival->in + row * rival->width
                                        : (float *)(void *)(rival->packed + i * entry + sizeof row);
    if (rival->how == ALLGATHER) memcpy(rival->packed + i * entry, &row, sizeof row);
    for (uint64_t c = 0; c < rival->width; c++) values[c] = (float)perf_value(key, row * rival->width + c, 24);
  }
  rival->counts[rival->rank] = (int)(n * entry);
}

static void allgather(struct rival *rival) {
  const size_t entry = sizeof(uint32_t) + rival->width * sizeof(float);
  MPI_Allgather(MPI_IN_PLACE, 1, MPI_INT, rival->counts, 1, MPI_INT, MPI_COMM_WORLD);
  size_t total = 0;
  for (int r = 0; r < rival->world; r++) {
    rival->starts[r] = (int)total;
    total += (size_t)rival->counts[r];
  }
  if (total > 2147483647) {
    fprintf(stderr, "mpi-rival: %zu bytes are more than one allgather of MPI 3 takes\n", total);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (total > rival->cap_taken) {
    free(rival->taken);
    rival->taken = must(perf_array_alloc(total, 1));
    rival->cap_taken = total;
  }
  MPI_Allgatherv(rival->packed, rival->counts[rival->rank], MPI_BYTE, rival->taken, rival->counts, rival->starts,
                 MPI_BYTE, MPI_COMM_WORLD);
  memset(rival->out, 0, rival->rows * rival->width * sizeof(float));
  for (size_t at = 0; at < total; at += entry) {
    uint32_t row;
    memcpy(&row, rival->taken + at, sizeof row);
    float *sum = rival->out + row * rival->width;
    const float *values = (const float *)(const void *)(rival->taken + at + sizeof row);
    for (uint64_t c = 0; c < rival->width; c++) sum[c] += values[c];
  }
}

/* As zenps-perf does: ranks take turns in checking all of a result, and a digest tells whether all have the same. */
static int verify(struct rival *rival, uint64_t step) {
  const uint64_t n_values = rival->rows * rival->width;
  perf_digest_add(&rival->digest, rival->out, n_values * sizeof(float));
  if (step % (uint64_t)rival->world != (uint64_t)rival->rank) return 1;
  for (int r = 0; r < rival->world; r++) {
    uint64_t n;
    const int64_t *rows = perf_input_touched(rival->input, step, (uint32_t)r, &n);
    const uint64_t key = perf_value_key(rival->config.seed, step, (uint32_t)r, 0);
    for (uint64_t i = 0; i < n; i++) {
      const uint64_t first = (uint64_t)rows[i] * rival->width;
      for (uint64_t c = first; c < first + rival->width; c++) rival->sum[c] += (float)perf_value(key, c, 24);
    }
  }
  int good = 1;
  for (uint64_t i = 0; i < n_values; i++) {
    const double difference = rival->sum[i] - (double)rival->out[i];
    good &= difference < 1e-4 && difference > -1e-4;
    rival->sum[i] = 0;
  }
  return good;
}

static int all_have_the_same(const struct rival *rival) {
  uint64_t least = 0, most = 0;
  MPI_Allreduce(&rival->digest, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&rival->digest, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
  return least == most;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void run(struct rival *rival) {
  double *ms = must(calloc(rival->steps + 1, sizeof *ms)), *starts_s = must(calloc(rival->steps + 1, sizeof *starts_s));
  double cpu = 0, total_cpu = 0, nnz = 0;
  int good = 1;
  for (uint64_t step = 0; step < rival->warmup + rival->steps; step++) {
    fill(rival, step);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start_cpu_ms = cpu_ms();
    const uint64_t start_ns = zps_clock_ns();
    if (rival->how == DENSE) {
      MPI_Allreduce(rival->in, rival->out, (int)(rival->rows * rival->width), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
      allgather(rival);
    }
    const double taken_ms = (double)(zps_clock_ns() - start_ns) / 1e6, taken_cpu_ms = cpu_ms() - start_cpu_ms;
    MPI_Barrier(MPI_COMM_WORLD); /* no rank checks, or makes the next gradient, while others are still timed */
    if (step >= rival->warmup) {
      cpu += taken_cpu_ms;
      ms[step - rival->warmup] = taken_ms;
      starts_s[step - rival->warmup] = (double)start_ns / 1e9;
      nnz += rival->counts[rival->rank] / (double)(sizeof(uint32_t) + rival->width * sizeof(float));
    }
    if (rival->verify) good &= verify(rival, step);
  }
  MPI_Allreduce(MPI_IN_PLACE, ms, (int)rival->steps, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(&cpu, &total_cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &nnz, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  good &= all_have_the_same(rival);
  if (rival->rank == 0) {
    const double per_rank_step = (double)rival->world * (double)rival->steps;
    printf("{\"rows\":%llu,\"density\":%.9g,\"cpu_ms\":%.3f,\"verified\":%s,\"timeline\":[",
           (unsigned long long)rival->rows, nnz / per_rank_step / (double)rival->rows, total_cpu / per_rank_step,
           !rival->verify ? "null"
           : good         ? "true"
                          : "false");
    for (uint64_t k = 0; k < rival->steps; k++)
      printf("%s{\"start_s\":%.6f,\"ms\":%.6f}", k > 0 ? "," : "", starts_s[k], ms[k]);
    qsort(ms, rival->steps, sizeof *ms, by_value);
    printf("],\"median_ms\":%.6f}\n", ms[(rival->steps - 1) / 2]);
  }
  free(ms);
  free(starts_s);
}

static int parse(struct rival *rival, int argc, char **argv) {
  static const struct option options[] = {{"how", 1, NULL, 'h'},     {"rows", 1, NULL, 'r'},   {"width", 1, NULL, 'w'},
                                          {"density", 1, NULL, 'd'}, {"trace", 1, NULL, 't'},  {"batch", 1, NULL, 'b'},
                                          {"steps", 1, NULL, 'k'},   {"warmup", 1, NULL, 'j'}, {"seed", 1, NULL, 's'},
                                          {"verify", 0, NULL, 'v'},  {NULL, 0, NULL, 0}};
  *rival = (struct rival){
      .config = {.rows = 0, .density = 0.01, .batch = 128, .seed = 1}, .width = 1, .steps = 5, .warmup = 1};
  for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    switch (option) {
      case 'h':
        rival->how = strcmp(optarg, "allgather") == 0 ? ALLGATHER : DENSE;
        break;
      case 'r':
        rival->config.rows = strtoull(optarg, NULL, 10);
        break;
      case 'w':
        rival->width = strtoull(optarg, NULL, 10);
        break;
      case 'd':
        rival->config.density = strtod(optarg, NULL);
        break;
      case 't':
        rival->config.trace = optarg;
        break;
      case 'b':
        rival->config.batch = strtoull(optarg, NULL, 10);
        break;
      case 'k':
        rival->steps = strtoull(optarg, NULL, 10);
        break;
      case 'j':
        rival->warmup = strtoull(optarg, NULL, 10);
        break;
      case 's':
        rival->config.seed = strtoull(optarg, NULL, 10);
        break;
      case 'v':
        rival->verify = 1;
        break;
      default:
        return 0;
    }
  }
  return rival->steps > 0 && rival->width > 0 && (rival->config.rows > 0 || rival->config.trace);
}

int main(int argc, char **argv) {
  struct rival rival;
  struct zps_error error;
  MPI_Init(&argc, &argv);
  if (!parse(&rival, argc, argv)) {
    fprintf(stderr,
            "usage: mpi-rival --how dense|allgather --rows R [--width W] [--density D | --trace FILE [--batch B]] "
            "[--steps K] [--warmup J] [--seed S] [--verify]\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rival.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &rival.world);
  rival.config.world = (uint32_t)rival.world;
  if (perf_input_create(&rival.config, &rival.input, &error) != ZPS_OK) {
    fprintf(stderr, "mpi-rival: %s\n", error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  rival.rows = perf_input_rows(rival.input);
  const uint64_t n_values = rival.rows * rival.width;
  rival.out = must(perf_array_alloc(n_values, sizeof(float)));
  if (rival.verify) rival.sum = must(calloc(n_values, sizeof(double)));
  if (rival.how == DENSE) rival.in = must(perf_array_alloc(n_values, sizeof(float)));
  if (rival.how == ALLGATHER) rival.packed = must(perf_array_alloc(n_values + rival.rows, sizeof(float)));
  rival.counts = must(calloc((size_t)rival.world, sizeof(int)));
  rival.starts = must(calloc((size_t)rival.world, sizeof(int)));
  run(&rival);
  perf_input_destroy(rival.input);
  free(rival.in);
  free(rival.out);
  free(rival.sum);
  free(rival.packed);
  free(rival.taken);
  free(rival.counts);
  free(rival.starts);
  MPI_Finalize();
  return 0;
}
