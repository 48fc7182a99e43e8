#include "worker/tools/perf_input.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "common/base/rng.h"
#include "common/codec/partition.h"
#include "worker/tools/lines.h"

struct perf_input {
  struct perf_input_config config;
  uint64_t rows, per_rank;
  int64_t *touched;
  uint64_t *seen; /* bitmap over the rows */
  /* trace: sample i is ids[starts[i] .. starts[i + 1]) */
  int64_t *ids;
  uint64_t *starts, n_samples, n_ids, cap_samples, cap_ids, longest;
};

static zps_err_t add_sample(struct perf_input *input, char *line, uint64_t number, struct zps_error *error) {
  const char *path = input->config.trace;
  if (!zps_enlarge_for_one(&input->starts, &input->cap_samples, input->n_samples + 1, 1024, sizeof *input->starts))
    return zps_fail(error, ZPS_ERR_NOMEM, "out of memory reading %s", path);
  const uint64_t first = input->n_ids;
  input->starts[input->n_samples] = first;
  for (char *at = line;;) {
    at += strspn(at, " \t");
    if (*at == '\0') break;
    char *end;
    errno = 0;
    const long long id = strtoll(at, &end, 10);
    if (end == at || errno != 0 || id < 0 || (*end != ' ' && *end != '\t' && *end != '\0'))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %llu: '%.20s' is no row id: must be numbers from 0 on, separated by spaces", path,
                      (unsigned long long)number, at);
    if ((uint64_t)id >= ZPS_PARTITION_ROWS_MAX)
      return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu: row id %lld is too large: at most %llu", path,
                      (unsigned long long)number, id, ZPS_PARTITION_ROWS_MAX - 1);
    if (input->config.rows > 0 && (uint64_t)id >= input->config.rows)
      return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu: row id %lld is not below --rows %llu", path,
                      (unsigned long long)number, id, (unsigned long long)input->config.rows);
    if (!zps_enlarge_for_one(&input->ids, &input->cap_ids, input->n_ids, 1024, sizeof *input->ids))
      return zps_fail(error, ZPS_ERR_NOMEM, "out of memory reading %s", path);
    input->ids[input->n_ids++] = id;
    if ((uint64_t)id >= input->rows) input->rows = (uint64_t)id + 1;
    at = end;
  }
  if (input->n_ids == first) return ZPS_OK; /* an empty line is no sample */
  if (input->n_ids - first > input->longest) input->longest = input->n_ids - first;
  input->starts[++input->n_samples] = input->n_ids;
  return ZPS_OK;
}

static zps_err_t read_trace(struct perf_input *input, struct zps_error *error) {
  struct zps_tools_lines *lines;
  zps_err_t code = zps_tools_lines_open(input->config.trace, &lines, error);
  if (code != ZPS_OK) return code;
  char *line;
  size_t len;
  while ((code = zps_tools_lines_next(lines, &line, &len, error)) == ZPS_OK) {
    code = add_sample(input, line, zps_tools_lines_number(lines), error);
    if (code != ZPS_OK) break;
  }
  zps_tools_lines_close(lines);
  if (code != ZPS_ERR_CLOSED) return code;
  if (input->n_samples == 0) return zps_fail(error, ZPS_ERR_INVALID, "%s holds no samples", input->config.trace);
  return ZPS_OK;
}

zps_err_t perf_input_create(const struct perf_input_config *config, struct perf_input **input_p,
                            struct zps_error *error) {
  struct perf_input *input = calloc(1, sizeof *input);
  if (!input) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  input->config = *config;
  input->rows = config->rows;
  zps_err_t code = ZPS_OK;
  uint64_t most;
  if (config->trace) {
    code = read_trace(input, error);
    if (code != ZPS_OK) goto err_destroy;
    most = config->batch * input->longest;
    if (most > input->rows) most = input->rows;
  } else {
    most = input->per_rank = (uint64_t)llround(config->density * (double)config->rows);
    if (config->density > 0 && most == 0) most = input->per_rank = 1;
  }
  input->touched = malloc((most ? most : 1) * sizeof *input->touched);
  input->seen = calloc((input->rows + 63) / 64, sizeof *input->seen);
  if (!input->touched || !input->seen) {
    code = zps_fail(error, ZPS_ERR_NOMEM, "out of memory for %llu rows", (unsigned long long)input->rows);
    goto err_destroy;
  }
  *input_p = input;
  return ZPS_OK;

err_destroy:
  perf_input_destroy(input);
  return code;
}

void perf_input_destroy(struct perf_input *input) {
  if (!input) return;
  free(input->touched);
  free(input->seen);
  free(input->ids);
  free(input->starts);
  free(input);
}

uint64_t perf_input_rows(const struct perf_input *input) {
  return input->rows;
}

/* Adds `row` to the set unless it is there. */
static void touch(struct perf_input *input, uint64_t row, uint64_t *n) {
  const uint64_t bit = 1ull << (row % 64);
  if (input->seen[row / 64] & bit) return;
  input->seen[row / 64] |= bit;
  input->touched[(*n)++] = (int64_t)row;
}

/* One of `n_rows` by the power law: the inverse of its continuous distribution function, so low row numbers are the hot
 * ones. */
static uint64_t draw(const struct perf_input *input, uint64_t n_rows, struct zps_rng *rng) {
  const double u = zps_rng_unit(rng), s = input->config.skew, rows = (double)n_rows;
  if (s == 0) return zps_rng_below(rng, n_rows);
  const double x = fabs(s - 1) < 1e-9 ? pow(rows + 1, u) : pow(u * (pow(rows + 1, 1 - s) - 1) + 1, 1 / (1 - s));
  const uint64_t row = (uint64_t)(x - 1);
  return row < n_rows ? row : n_rows - 1;
}

/* Of the rows first, first + stride, ... */
static void touch_random(struct perf_input *input, struct zps_rng *rng, uint64_t first, uint64_t stride, uint64_t *n) {
  const uint64_t n_rows = input->rows > first ? (input->rows - first + stride - 1) / stride : 0;
  const uint64_t wanted = input->per_rank < n_rows ? input->per_rank : n_rows;
  if (wanted > n_rows / 2) { /* selection sampling: one pass, exactly `wanted` */
    for (uint64_t row = 0; row < n_rows; row++)
      if (zps_rng_below(rng, n_rows - row) < wanted - *n) input->touched[(*n)++] = (int64_t)(first + row * stride);
    return;
  }
  for (uint64_t tries = 0; *n < wanted; tries++) /* a steep law runs out of hot rows: the rest falls evenly */
    touch(input, first + stride * (tries < 16 * wanted ? draw(input, n_rows, rng) : zps_rng_below(rng, n_rows)), n);
}

const int64_t *perf_input_touched(struct perf_input *input, uint64_t step, uint32_t rank, uint64_t *n_p) {
  const struct perf_input_config *config = &input->config;
  uint64_t n = 0;
  if (rank + config->empty < config->world || config->empty == 0) {
    if (config->trace) {
      for (uint64_t i = 0; i < config->batch; i++) {
        const uint64_t sample = ((step * config->world + rank) * config->batch + i) % input->n_samples;
        for (uint64_t k = input->starts[sample]; k < input->starts[sample + 1]; k++)
          touch(input, (uint64_t)input->ids[k], &n);
      }
    } else {
      const bool disjoint = config->overlap == PERF_OVERLAP_DISJOINT;
      const uint32_t drawer = config->overlap == PERF_OVERLAP_SAME ? 0 : rank;
      struct zps_rng rng = {zps_hash_mix64(config->seed ^ zps_hash_mix64(step * config->world + drawer + 1))};
      touch_random(input, &rng, disjoint ? rank : 0, disjoint ? config->world : 1, &n);
    }
  }
  for (uint64_t i = 0; i < n; i++) input->seen[input->touched[i] / 64] = 0;
  *n_p = n;
  return input->touched;
}
