/*
 * One rank of a benchmark of parts: TABLES embedding tables, of each of which a step touches as many entries as a batch
 * has samples (rows by a power law, repeated as they come), summed in three ways that take turns: as one table of as
 * many rows, by one list; as the parts of one tensor; as a tensor each, all in flight together. Rank 0 prints the
 * median milliseconds of each as a line of JSON.
 *
 *     zenpsrun -n 4 --servers 2 -- tests/bench/parts-rank TABLES ROWS WIDTH BATCH STEPS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zenps/zenps.h>

#include "common/base/clock.h"
#include "common/base/rng.h"

enum way { TABLE, PARTS, TENSORS, WAYS };
enum { TABLES_MAX = 256, WARMUP = 5 };

static unsigned rank, n_tables;
static uint64_t rows, batch;
static uint32_t width;
static zenps_job_t *job;
static zenps_tensor_t *table, *fused, *tensors[TABLES_MAX];
static int64_t *in_table, *in_one; /* the entries by row of the table, and by row of all tables */
static float *values;

static void check(zenps_status_t status, const char *what) {
  if (status == ZENPS_OK) return;
  fprintf(stderr, "parts-rank %u: %s: %s\n", rank, what, zenps_last_error()->text);
  exit(1);
}

/* Rows whose number is x^3 of the table: some are hot. */
static void draw(uint64_t step) {
  struct zps_rng rng = {.state = step * 1000 + rank};
  for (uint64_t i = 0; i < n_tables * batch; i++) {
    const double x = zps_rng_unit(&rng);
    in_table[i] = (int64_t)(x * x * x * (double)rows);
    in_one[i] = in_table[i] + (int64_t)(i / batch * rows);
    for (uint32_t j = 0; j < width; j++) values[i * width + j] = (float)(x + j);
  }
}

static void start(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                  zenps_request_t **request) {
  ZENPS_GRAD_INIT(out);
  out->layout = ZENPS_ROWS;
  check(zenps_allreduce(tensor, step, in, out, request), "zenps_allreduce");
}

static void finish(zenps_request_t *request) {
  check(zenps_wait(request, -1), "zenps_wait");
  zenps_request_free(request);
}

static void list(zenps_grad_t *in, int64_t *row_ids, float *from, uint64_t nnz) {
  ZENPS_GRAD_INIT(in);
  in->layout = ZENPS_ROWS;
  in->nnz = nnz;
  in->row_ids = row_ids;
  in->values = from;
}

static void run_parts(uint64_t step) {
  zenps_part_t parts[TABLES_MAX], result[TABLES_MAX];
  zenps_request_t *request;
  zenps_grad_t in, out;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  for (unsigned t = 0; t < n_tables; t++) {
    result[t] = parts[t] =
        (zenps_part_t){.struct_size = sizeof parts[t], .row_base = t * rows, .n_rows = rows, .layout = ZENPS_ROWS};
    parts[t].nnz = batch;
    parts[t].row_ids = in_table + t * batch;
    parts[t].values = values + t * batch * width;
  }
  in.parts = parts;
  out.parts = result;
  in.n_parts = out.n_parts = n_tables;
  check(zenps_allreduce(fused, step, &in, &out, &request), "zenps_allreduce");
  finish(request);
}

static double run(enum way way, uint64_t step) {
  zenps_request_t *requests[TABLES_MAX];
  zenps_grad_t in[TABLES_MAX], out[TABLES_MAX];
  check(zenps_barrier(job), "zenps_barrier");
  const uint64_t start_ns = zps_clock_ns();
  switch (way) {
    case TABLE:
      list(&in[0], in_one, values, n_tables * batch);
      start(table, step, &in[0], &out[0], &requests[0]);
      finish(requests[0]);
      break;
    case PARTS:
      run_parts(step);
      break;
    default:
      for (unsigned t = 0; t < n_tables; t++) {
        list(&in[t], in_table + t * batch, values + t * batch * width, batch);
        start(tensors[t], step, &in[t], &out[t], &requests[t]);
      }
      for (unsigned t = 0; t < n_tables; t++) finish(requests[t]);
  }
  return (double)(zps_clock_ns() - start_ns) / 1e6;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc != 6 || (n_tables = (unsigned)atoi(argv[1])) < 1 || n_tables > TABLES_MAX) {
    fprintf(stderr, "usage: parts-rank TABLES ROWS WIDTH BATCH STEPS, up to %d tables\n", TABLES_MAX);
    return 2;
  }
  rows = (uint64_t)atoll(argv[2]);
  width = (uint32_t)atoi(argv[3]);
  batch = (uint64_t)atoll(argv[4]);
  const unsigned n_steps = (unsigned)atoi(argv[5]);
  double *const ms = calloc(WAYS * (size_t)n_steps, sizeof *ms);
  in_table = calloc(n_tables * batch, sizeof *in_table);
  in_one = calloc(n_tables * batch, sizeof *in_one);
  values = calloc(n_tables * batch, width * sizeof *values);
  if (!ms || !in_table || !in_one || !values) return 1;
  check(zenps_open(NULL, &job), "zenps_open");
  rank = (unsigned)zenps_rank(job);
  check(zenps_tensor_open(job, "table", n_tables * rows, width, ZENPS_F32, NULL, &table), "zenps_tensor_open");
  check(zenps_tensor_open(job, "parts", n_tables * rows, width, ZENPS_F32, NULL, &fused), "zenps_tensor_open");
  for (unsigned t = 0; t < n_tables; t++) {
    char name[32];
    snprintf(name, sizeof name, "t%u", t);
    check(zenps_tensor_open(job, name, rows, width, ZENPS_F32, NULL, &tensors[t]), "zenps_tensor_open");
  }
  for (unsigned step = 0; step < WARMUP + n_steps; step++) {
    draw(step);
    for (unsigned i = 0; i < WAYS; i++) {
      const enum way way = (enum way)((step + i) % WAYS);
      const double took = run(way, step);
      if (step >= WARMUP) ms[way * n_steps + step - WARMUP] = took;
    }
  }
  double median[WAYS];
  for (unsigned i = 0; i < WAYS; i++) {
    qsort(ms + i * n_steps, n_steps, sizeof *ms, compare);
    median[i] = ms[i * n_steps + n_steps / 2];
  }
  if (rank == 0)
    printf(
        "{\"tables\": %u, \"rows\": %llu, \"width\": %u, \"batch\": %llu, \"table_ms\": %.3f, \"parts_ms\": %.3f, "
        "\"tensors_ms\": %.3f, \"parts_of_table\": %.3f}\n",
        n_tables, (unsigned long long)rows, width, (unsigned long long)batch, median[TABLE], median[PARTS],
        median[TENSORS], median[PARTS] / median[TABLE]);
  check(zenps_barrier(job), "zenps_barrier");
  zenps_close(job);
  free(ms);
  free(in_table);
  free(in_one);
  free(values);
  return 0;
}
