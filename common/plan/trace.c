#include "common/plan/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "common/base/rng.h"
#include "common/base/source.h"

enum { PARTS_MAX = 128, POINTS = 15 };

void zps_plan_trace_fini(struct zps_plan_trace *trace) {
  free(trace->rows);
  free(trace->ends);
  *trace = (struct zps_plan_trace){.rows = NULL};
}

/* One sample's rows. Words without a colon are row numbers. Where one has a colon the line is libsvm's: its first word
 * is a label, and qid:N may follow it. */
static zps_err_t read_line(struct zps_plan_trace *trace, char *line) {
  const bool libsvm = strchr(line, ':') != NULL;
  char *save = NULL;
  bool first = true, is_second = false;
  for (char *word = strtok_r(line, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
    const bool label = libsvm && first;
    const bool query = libsvm && is_second && strncmp(word, "qid:", 4) == 0;
    is_second = first;
    first = false;
    if (label || query) continue;
    char *end;
    errno = 0;
    unsigned long long row = strtoull(word, &end, 10);
    if (end == word || *word == '-' || *end != (libsvm ? ':' : '\0') || row < libsvm) return ZPS_ERR_INVALID;
    if (errno || row - libsvm >= UINT32_MAX) return ZPS_ERR_UNSUPPORTED;
    row -= libsvm;
    if (!zps_enlarge_for_one(&trace->rows, &trace->cap_rows, trace->n_rows, 1024, sizeof *trace->rows))
      return ZPS_ERR_NOMEM;
    trace->rows[trace->n_rows++] = (uint32_t)row;
    if (row >= trace->domain) trace->domain = row + 1;
  }
  if (first) return ZPS_OK;
  if (!zps_enlarge_for_one(&trace->ends, &trace->cap_samples, trace->n_samples, 1024, sizeof *trace->ends))
    return ZPS_ERR_NOMEM;
  trace->ends[trace->n_samples++] = trace->n_rows;
  return ZPS_OK;
}

/* The next line, of *len_p bytes; ZPS_ERR_CLOSED at the end. getline() would take one of any length. */
static zps_err_t next_line(FILE *file, const struct zps_source *source, size_t number, char **line_p, uint64_t *cap_p,
                           size_t *len_p, struct zps_error *error) {
  size_t len = 0;
  int c = 0;
  while (c != '\n' && (c = getc_unlocked(file)) != EOF) {
    if (len >= ZPS_SOURCE_LINE_MAX)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %zu: goes on after %zu bytes: must be text in lines, each shorter", source->name,
                      number, len);
    if (!zps_enlarge_for_one(line_p, cap_p, len + 1, 1024, 1))
      return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a line of %s", source->name);
    (*line_p)[len++] = (char)c;
  }
  if (ferror(file)) return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot read %s", source->name);
  if (len == 0) return ZPS_ERR_CLOSED;
  (*line_p)[len] = '\0';
  *len_p = len;
  return ZPS_OK;
}

static zps_err_t read_lines(FILE *file, struct zps_source *source, struct zps_plan_trace *trace,
                            struct zps_error *error) {
  char *line = NULL;
  uint64_t cap = 0;
  size_t len = 0, number = 0;
  zps_err_t err;
  while ((err = next_line(file, source, ++number, &line, &cap, &len, error)) == ZPS_OK) {
    err = zps_source_add(source, len, error);
    if (err) break;
    const char *const nul = memchr(line, '\0', len);
    if (nul) {
      err = zps_fail(error, ZPS_ERR_INVALID, "%s, line %zu, column %zu: a NUL byte; must be text (UTF-8) without any",
                     source->name, number, (size_t)(nul - line) + 1);
      break;
    }
    const bool has_mark = number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0; /* of UTF-8, no text */
    err = read_line(trace, line + (has_mark ? 3 : 0));
    if (err == ZPS_ERR_NOMEM) zps_fail(error, err, "no memory for the samples of %s", source->name);
    if (err == ZPS_ERR_UNSUPPORTED)
      err = zps_fail(error, ZPS_ERR_INVALID, "%s, line %zu: a row is too large: at most %u, counted from 0",
                     source->name, number, UINT32_MAX - 1);
    else if (err == ZPS_ERR_INVALID)
      zps_fail(error, err,
               "%s, line %zu: no list of rows; right would be numbers (\"5 17 3\") or libsvm (\"1 6:0.5 18:1\"), not "
               "compressed",
               source->name, number);
    if (err) break;
  }
  free(line);
  return err == ZPS_ERR_CLOSED ? ZPS_OK : err;
}

zps_err_t zps_plan_trace_read(FILE *file, const char *name, struct zps_plan_trace *trace, struct zps_error *error) {
  struct zps_plan_trace read = {.rows = NULL};
  struct zps_source source;
  zps_err_t err = zps_source_init(&source, fileno(file), name, false, error);
  if (!err) err = read_lines(file, &source, &read, error);
  if (!err && read.n_samples == 0) err = zps_fail(error, ZPS_ERR_INVALID, "%s has no samples", name);
  if (err) {
    zps_plan_trace_fini(&read);
    return err;
  }
  *trace = read;
  return ZPS_OK;
}

struct measure {
  const struct zps_plan_trace *trace;
  uint64_t rows;
  uint32_t width, batch, points; /* points: ranks 1, 2, 4, ... 2^(points-1) */
  uint32_t *order;               /* samples, shuffled as far as a step needs */
  uint32_t *seen_all, *seen_one; /* per row: stamp of the step, and of the rank in it, that last touched it */
  uint32_t stamp;                /* of the present rank */
  double distinct, unions[POINTS], densest[POINTS], blocks;
};

static void shuffle(struct measure *measure, struct zps_rng *rng, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const size_t j = i + zps_rng_below(rng, measure->trace->n_samples - i);
    const uint32_t sample = measure->order[i];
    measure->order[i] = measure->order[j];
    measure->order[j] = sample;
  }
}

/* The rank's rows, counted into the union's and, per finest part, into `parts`. */
static void touch(struct measure *measure, uint32_t rank, uint32_t step, uint64_t *all, uint64_t *own,
                  uint64_t parts[PARTS_MAX]) {
  const struct zps_plan_trace *trace = measure->trace;
  measure->stamp++;
  *own = 0;
  for (uint32_t i = 0; i < measure->batch; i++) {
    const uint32_t sample = measure->order[(size_t)rank * measure->batch + i];
    for (size_t at = sample ? trace->ends[sample - 1] : 0; at < trace->ends[sample]; at++) {
      const uint32_t row = trace->rows[at];
      if (row >= measure->rows || measure->seen_one[row] == measure->stamp) continue;
      measure->seen_one[row] = measure->stamp;
      ++*own;
      parts[(unsigned __int128)row * PARTS_MAX / measure->rows]++;
      if (measure->seen_all[row] == step) continue;
      measure->seen_all[row] = step;
      ++*all;
    }
  }
}

/* Share of blocks that hold one of the rank's rows. */
static double count_blocks(const struct measure *measure) {
  const uint64_t a_block = measure->width < ZPS_PLAN_BLOCK ? (uint64_t)ZPS_PLAN_BLOCK / measure->width : 1;
  uint64_t blocks = 0, touched = 0;
  for (uint64_t row = 0; row < measure->rows; row += a_block, blocks++) {
    for (uint64_t i = row; i < row + a_block && i < measure->rows; i++) {
      if (measure->seen_one[i] != measure->stamp) continue;
      touched++;
      break;
    }
  }
  return (double)touched / (double)blocks;
}

static void measure_step(struct measure *measure, uint32_t step) {
  uint64_t all = 0, own;
  for (uint32_t rank = 0, point = 0; rank < 1u << (measure->points - 1); rank++) {
    uint64_t parts[PARTS_MAX] = {0};
    touch(measure, rank, step, &all, &own, parts);
    if (rank == 0) {
      measure->distinct += (double)own;
      measure->blocks += count_blocks(measure);
      for (unsigned fine = PARTS_MAX, p = 7; p > 0; p--, fine /= 2) {
        uint64_t densest = 0;
        for (unsigned i = 0; i < fine; i++) densest = parts[i] > densest ? parts[i] : densest;
        measure->densest[p] += own ? (double)densest * fine / (double)own : 1;
        for (unsigned i = 0; i < fine / 2; i++) parts[i] = parts[2 * i] + parts[2 * i + 1];
      }
    }
    if (rank + 1 != 1u << point) continue;
    measure->unions[point++] += (double)all;
  }
}

zps_err_t zps_plan_trace_profile(const struct zps_plan_trace *trace, const struct zps_plan_sampling *sampling,
                                 struct zps_plan_profile *profile, struct zps_error *error) {
  struct measure measure = {.trace = trace,
                            .rows = sampling->rows ? sampling->rows : trace->domain,
                            .width = sampling->width,
                            .batch = sampling->batch,
                            .points = 1};
  if (sampling->batch < 1 || sampling->batch > trace->n_samples || sampling->steps < 1)
    return zps_fail(error, ZPS_ERR_INVALID, "a batch of %u samples; right would be from 1 to the trace's %zu",
                    sampling->batch, trace->n_samples);
  while (measure.points < POINTS && 2u << (measure.points - 1) <= sampling->ranks &&
         (2ull << (measure.points - 1)) * sampling->batch <= trace->n_samples)
    measure.points++;
  measure.order = malloc(trace->n_samples * sizeof *measure.order);
  measure.seen_all = calloc(measure.rows, sizeof *measure.seen_all);
  measure.seen_one = calloc(measure.rows, sizeof *measure.seen_one);
  zps_err_t err = ZPS_OK;
  if (!measure.order || !measure.seen_all || !measure.seen_one) {
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory to measure a trace of %zu samples", trace->n_samples);
    goto end;
  }
  struct zps_rng rng = {.state = sampling->seed};
  for (size_t i = 0; i < trace->n_samples; i++) measure.order[i] = (uint32_t)i;
  for (uint32_t step = 1; step <= sampling->steps; step++) {
    shuffle(&measure, &rng, (size_t)sampling->batch << (measure.points - 1));
    measure_step(&measure, step);
  }
  /* The first ranks' mean stands for a rank's rows and for the union of one, so that gamma_1 is 1. */
  profile->density = measure.distinct / sampling->steps / (double)measure.rows;
  profile->block_density = measure.blocks / sampling->steps;
  profile->overlap = ZPS_PLAN_MEASURED;
  profile->gamma.n = profile->skew.n = 0;
  for (uint32_t p = 0; p < measure.points; p++)
    zps_plan_curve_set(&profile->gamma, 1u << p, measure.unions[p] / measure.distinct);
  zps_plan_curve_set(&profile->skew, 1, 1);
  for (unsigned p = 1; p <= 7; p++) zps_plan_curve_set(&profile->skew, 1u << p, measure.densest[p] / sampling->steps);
end:
  free(measure.order);
  free(measure.seen_all);
  free(measure.seen_one);
  return err;
}
