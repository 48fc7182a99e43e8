#include "proto/control_plan.h"

#include <math.h>

#define COST_MAX_NS 1e9
#define CORES_MAX 65536.0

/* ------------------------------------------------------------ tensor.report */

static zps_json *costs_write(const struct zps_plan_calibration *calibration) {
  zps_json *costs = zps_json_object();
#define WRITE(name) costs = zps_json_set_real(costs, #name, calibration->name);
  ZPS_PLAN_COSTS(WRITE)
#undef WRITE
  return costs;
}

zps_json *zps_control_report_write(const struct zps_tensor_report *report) {
  const struct zps_plan_told *told = &report->told;
  const struct zps_plan_report *rounds = &told->report;
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", report->job_id);
  params = zps_json_set_u64(params, "tensor", report->tensor);
  params = zps_json_set_hex(params, "step", rounds->step);
  params = zps_json_set_str(params, "scheme", zps_plan_scheme_name(rounds->scheme));
  params = zps_json_set_u64(params, "rounds", rounds->rounds);
  params = zps_json_set_real(params, "rows", rounds->rows);
  params = zps_json_set_real(params, "union_rows", rounds->union_rows);
  if (rounds->waits) params = zps_json_set_bool(params, "waits", true);
  if (rounds->round_s > 0) params = zps_json_set_real(params, "round_s", rounds->round_s);
  if (rounds->first_s > 0) params = zps_json_set_real(params, "first_s", rounds->first_s);
  if (told->bandwidth > 0) params = zps_json_set_real(params, "bandwidth", told->bandwidth);
  if (told->latency_s > 0) params = zps_json_set_real(params, "latency_s", told->latency_s);
  if (told->cores > 0) params = zps_json_set_u64(params, "cores", told->cores);
  if (told->lists) params = zps_json_set_bool(params, "lists", true);
  if (told->calibration.encode_value_ns > 0) params = zps_json_set(params, "costs", costs_write(&told->calibration));
  if (!told->sketch) return params;
  char text[ZPS_PLAN_SKETCH_TEXT + 1];
  zps_plan_sketch_print(told->sketch, text);
  return zps_json_set_str(params, "sketch", text);
}

static double get_measure(const zps_json *params, const char *key) {
  const double value = zps_json_opt_real(params, key, 0);
  return isfinite(value) && value > 0 ? value : 0;
}

/* All of them or none: one that is left out would make computing free. */
static void costs_read(const zps_json *params, struct zps_plan_calibration *calibration) {
  const zps_json *costs = zps_json_get(params, "costs");
  if (!zps_json_is_object(costs)) return;
  struct zps_plan_calibration read;
  bool whole = true;
  zps_plan_calibration_default(&read);
#define READ(name)                       \
  read.name = get_measure(costs, #name); \
  whole = whole && read.name < COST_MAX_NS;
  ZPS_PLAN_COSTS(READ)
#undef READ
  whole = whole && read.encode_value_ns > 0 && read.reduce_value_ns > 0 && read.decode_value_ns > 0;
  if (whole) *calibration = read;
}

static zps_err_t read_scheme(const zps_json *object, enum zps_plan_scheme *scheme_p, struct zps_error *error) {
  const char *name = NULL;
  const zps_err_t err = zps_json_get_str(object, "scheme", &name, error);
  if (err) return err;
  if (zps_plan_scheme_parse(name, scheme_p) && *scheme_p != ZPS_PLAN_AUTO) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "there is no scheme '%.40s'", name);
}

zps_err_t zps_control_report_read(const zps_json *params, struct zps_tensor_report *report,
                                  struct zps_plan_sketch *sketch, struct zps_error *error) {
  struct zps_plan_told *const told = &report->told;
  struct zps_plan_report *const rounds = &told->report;
  *report = (struct zps_tensor_report){.told = {.bandwidth = get_measure(params, "bandwidth"),
                                                .latency_s = get_measure(params, "latency_s"),
                                                .cores = (uint32_t)fmin(get_measure(params, "cores"), CORES_MAX),
                                                .lists = zps_json_opt_bool(params, "lists", false)}};
  zps_err_t err = zps_json_get_hex(params, "job_id", &report->job_id, error);
  if (!err) err = zps_control_get_u32(params, "tensor", 0, UINT32_MAX, &report->tensor, error);
  if (!err) err = zps_json_get_hex(params, "step", &rounds->step, error);
  if (!err && zps_json_get(params, "scheme")) err = read_scheme(params, &rounds->scheme, error);
  if (err) return err;
  const char *const text = zps_json_opt_str(params, "sketch", NULL);
  if (text && !zps_plan_sketch_parse(text, sketch))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "a sketch is a limit and ascending hashes below it, 16 digits each");
  if (text) told->sketch = sketch;
  costs_read(params, &told->calibration);
  rounds->rounds = zps_json_opt_u64(params, "rounds", 0);
  rounds->rows = get_measure(params, "rows");
  rounds->union_rows = get_measure(params, "union_rows");
  rounds->round_s = get_measure(params, "round_s");
  rounds->first_s = get_measure(params, "first_s");
  rounds->waits = zps_json_opt_bool(params, "waits", false);
  return ZPS_OK;
}

/* ------------------------------------------------------------ tensor.plan */

zps_json *zps_control_plan_write(const struct zps_tensor_plan *plan) {
  zps_json *runs = zps_json_array();
  for (unsigned i = 0; i < plan->n; i++) {
    zps_json *run = zps_json_set_hex(zps_json_object(), "from", plan->runs[i].from);
    run = zps_json_set_hex(run, "until", plan->runs[i].until);
    runs = zps_json_append(runs, zps_json_set_str(run, "scheme", zps_plan_scheme_name(plan->runs[i].scheme)));
  }
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", plan->job_id);
  params = zps_json_set_u64(params, "tensor", plan->tensor);
  return zps_json_set(zps_json_set_bool(params, "whole", plan->whole), "runs", runs);
}

static zps_err_t run_read(const zps_json *object, struct zps_plan_run *run, struct zps_error *error) {
  zps_err_t err = zps_json_get_hex(object, "from", &run->from, error);
  if (!err) err = zps_json_get_hex(object, "until", &run->until, error);
  return err ? err : read_scheme(object, &run->scheme, error);
}

zps_err_t zps_control_plan_read(const zps_json *params, struct zps_tensor_plan *plan, struct zps_error *error) {
  const zps_json *runs = NULL;
  *plan = (struct zps_tensor_plan){.whole = zps_json_opt_bool(params, "whole", false)};
  zps_err_t err = zps_json_get_hex(params, "job_id", &plan->job_id, error);
  if (!err) err = zps_control_get_u32(params, "tensor", 0, UINT32_MAX, &plan->tensor, error);
  if (!err) err = zps_json_get_array(params, "runs", &runs, error);
  if (err) return err;
  const size_t n = zps_json_array_len(runs);
  if (n == 0 || n > ZPS_PLAN_RUNS)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'runs' has %zu elements, want 1 to %d", n, ZPS_PLAN_RUNS);
  for (size_t i = 0; i < n && !err; i++) err = run_read(zps_json_at(runs, i), &plan->runs[i], error);
  plan->n = (unsigned)n;
  return err;
}
