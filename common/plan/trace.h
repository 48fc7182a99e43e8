/*
 * A profile measured from a trace: one sample a line, as numbers of the rows that it touches ("16965 15386 2311"), or
 * in libsvm's format ("label index:value ...", indices from 1). A rank's gradient touches the rows of its batch's
 * samples.
 */
#ifndef ZPS_PLAN_TRACE_H
#define ZPS_PLAN_TRACE_H

#include <stdio.h>

#include "common/plan/profile.h"

struct zps_plan_trace {
  uint32_t *rows; /* of all samples, one after another */
  size_t *ends;   /* per sample: behind its last row */
  size_t n_rows, n_samples;
  uint64_t cap_rows, cap_samples;
  uint64_t domain; /* greatest row, plus 1 */
};

/* Reads all of `file`; `name` is for errors. On failure `trace` holds nothing to free. */
zps_err_t zps_plan_trace_read(FILE *file, const char *name, struct zps_plan_trace *trace,
                              struct zps_error *error) ZPS_MUSTCHECK;
void zps_plan_trace_fini(struct zps_plan_trace *trace);

struct zps_plan_sampling {
  uint64_t rows;  /* of the tensor; 0: the trace's */
  uint32_t width; /* of the tensor, for its blocks */
  uint32_t batch; /* samples of a rank in a step */
  uint32_t ranks; /* up to which the densification is measured; fewer where the samples do not suffice */
  uint32_t steps; /* steps to average over */
  uint64_t seed;  /* of the samples that meet in a step */
};

/* Density, densification at 2, 4, 8, ... ranks, skew of 2, 4, ... 128 even parts, and blocks of the first rank. `run`
 * is kept. */
zps_err_t zps_plan_trace_profile(const struct zps_plan_trace *trace, const struct zps_plan_sampling *sampling,
                                 struct zps_plan_profile *profile, struct zps_error *error) ZPS_MUSTCHECK;

#endif
