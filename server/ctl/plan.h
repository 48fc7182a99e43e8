/*
 * zenpsctl plan: what each scheme would cost on a cluster that need not exist. It asks no coordinator: arithmetic on
 * options.
 *
 * plan.c goes from options to a report; plan_options.c is the table of options; plan_report.c makes and prints the
 * report; plan_svg.c draws it.
 */
#ifndef ZPS_SERVER_CTL_PLAN_H
#define ZPS_SERVER_CTL_PLAN_H

#include <stdio.h>

#include "common/base/config.h"
#include "common/control/json.h"
#include "common/plan/model.h"

struct zps_ctl_plan_options {
  uint64_t workers, workers_max, ranks_per_host, hosts_per_rack, servers;
  bool servers_apart;
  double bandwidth_gbit, latency_us, host_bandwidth_gbit, host_latency_us, rack_bandwidth_gbit;
  uint64_t rows, width;
  int dtype, values;
  double density;
  int overlap;
  char *gamma, *skew;
  double run, block_density;
  char *trace;
  uint64_t batch, trace_steps, seed;
  int codec;
  double imbalance;
  int compute;
  double machine, threads;
  bool as_published, rows_in, json;
  char *schemes, *svg;
};

extern const struct zps_opt_table zps_ctl_plan_table;
extern const char *const zps_ctl_plan_dtypes[]; /* `dtype` is an index of; ends with NULL */

/* The points over n that tables and drawings show: powers of two, and the last. */
enum { ZPS_CTL_PLAN_POINTS = 20 };

struct zps_ctl_plan {
  struct zps_plan_input input; /* at `workers` ranks */
  unsigned schemes;            /* bits 1u << scheme */
  uint32_t workers, workers_max;
  unsigned n_points;
  uint32_t points[ZPS_CTL_PLAN_POINTS];
};

/* The same question for n ranks. */
static inline struct zps_plan_input zps_ctl_plan_at(const struct zps_ctl_plan *plan, uint32_t n) {
  struct zps_plan_input input = plan->input;
  input.cluster.n = n;
  return input;
}

/* All answers as one value; NULL when memory is short. */
zps_json *zps_ctl_plan_report(const struct zps_ctl_plan *plan);
void zps_ctl_plan_print(FILE *out, const zps_json *report);
/* The time of every scheme over n, by gnuplot. */
zps_err_t zps_ctl_plan_draw(const char *path, const struct zps_ctl_plan *plan, struct zps_error *error) ZPS_MUSTCHECK;

/* All of it: argv[0] is "plan". */
zps_err_t zps_ctl_plan_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;

#endif
