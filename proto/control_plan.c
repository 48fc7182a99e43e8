#include "proto/control_plan.h"

#define COST_MAX_NS 1e9
#define CORES_MAX 65536u

static const char *scheme_word(unsigned scheme) {
  return zps_plan_scheme_name((enum zps_plan_scheme)scheme);
}

/* ------------------------------------------------------------ tensor.report */

#define ROW(name) {#name, ZPS_FIELD_REAL, ZPS_FIELD_AT(struct zps_plan_calibration, name)},
static const struct zps_field costs[] = {ZPS_PLAN_COSTS(ROW)};
#undef ROW
static const struct zps_fields costs_fields = {ZPS_FIELDS_OF(struct zps_plan_calibration, costs)};

static zps_json *put_costs(const void *at) {
  return zps_fields_write(&costs_fields, at);
}

/* Takes all of them or none: one that is left out would make computing free. */
static zps_err_t take_costs(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  struct zps_plan_calibration read;
  zps_plan_calibration_default(&read);
  zps_err_t err = zps_json_check_object(value, key, error);
  if (!err) err = zps_fields_complete(&costs_fields, value, &read, error);
  bool is_whole = read.encode_value_ns > 0 && read.reduce_value_ns > 0 && read.decode_value_ns > 0;
#define CHECK(name) is_whole = is_whole && read.name < COST_MAX_NS;
  ZPS_PLAN_COSTS(CHECK)
#undef CHECK
  if (!err && is_whole) *(struct zps_plan_calibration *)at = read;
  return err;
}

static zps_json *put_sketch(const void *at) {
  char text[ZPS_PLAN_SKETCH_TEXT + 1];
  zps_plan_sketch_print(*(const struct zps_plan_sketch *const *)at, text);
  return zps_json_str(text);
}

/* The caller of the reader has room for a sketch, which `at` points to. */
static zps_err_t take_sketch(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  const char *text = NULL;
  const zps_err_t err = zps_json_read_str(value, key, &text, error);
  if (err || zps_plan_sketch_parse(text, *(struct zps_plan_sketch **)at)) return err;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "a sketch is a limit and ascending hashes below it, 16 digits each");
}

#define AT(member) ZPS_FIELD_AT(struct zps_tensor_report, member)
static const struct zps_field report[] = {
    {"job_id", ZPS_FIELD_HEX, AT(job_id)},
    {"tensor", ZPS_FIELD_NUMBER, AT(tensor)},
    {"step", ZPS_FIELD_HEX, AT(told.report.step)},
    {"scheme", ZPS_FIELD_WORD, AT(told.report.scheme), .word = scheme_word, .max = ZPS_PLAN_SCHEMES - 1,
     .optional = true, .always = true},
    {"rounds", ZPS_FIELD_NUMBER, AT(told.report.rounds), .optional = true, .always = true},
    {"rows", ZPS_FIELD_REAL, AT(told.report.rows)},
    {"union_rows", ZPS_FIELD_REAL, AT(told.report.union_rows)},
    {"waits", ZPS_FIELD_FLAG, AT(told.report.waits), .optional = true},
    {"round_s", ZPS_FIELD_REAL, AT(told.report.round_s), .optional = true},
    {"first_s", ZPS_FIELD_REAL, AT(told.report.first_s), .optional = true},
    {"bandwidth", ZPS_FIELD_REAL, AT(told.bandwidth), .optional = true},
    {"latency_s", ZPS_FIELD_REAL, AT(told.latency_s), .optional = true},
    {"cores", ZPS_FIELD_NUMBER, AT(told.cores), .optional = true},
    {"lists", ZPS_FIELD_FLAG, AT(told.lists), .optional = true},
    {"costs", ZPS_FIELD_OTHER, AT(told.calibration), .put = put_costs, .take = take_costs, .form = "object",
     .optional = true},
    {"sketch", ZPS_FIELD_OTHER, AT(told.sketch), .put = put_sketch, .take = take_sketch, .form = "text",
     .optional = true},
};
#undef AT
const struct zps_fields zps_control_report = {.name = "tensor.report", ZPS_FIELDS_OF(struct zps_tensor_report, report)};

zps_err_t zps_control_report_read(const zps_json *params, struct zps_tensor_report *to, struct zps_plan_sketch *sketch,
                                  struct zps_error *error) {
  *to = (struct zps_tensor_report){.told = {.sketch = sketch}};
  const zps_err_t err = zps_fields_complete(&zps_control_report, params, to, error);
  if (!zps_json_get(params, "sketch")) to->told.sketch = NULL;
  if (to->told.cores > CORES_MAX) to->told.cores = CORES_MAX;
  return err;
}

/* ------------------------------------------------------------ tensor.plan */

static const struct zps_field run[] = {
    {"from", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_plan_run, from)},
    {"until", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_plan_run, until)},
    {"scheme", ZPS_FIELD_WORD, ZPS_FIELD_AT(struct zps_plan_run, scheme), .word = scheme_word,
     .max = ZPS_PLAN_SCHEMES - 1},
};
static const struct zps_fields run_fields = {ZPS_FIELDS_OF(struct zps_plan_run, run)};
static const struct zps_field plan[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_tensor_plan, job_id)},
    {"tensor", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tensor_plan, tensor)},
    {"whole", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_tensor_plan, whole)},
    {"runs", ZPS_FIELD_OBJECT, ZPS_FIELD_ROW_AT(struct zps_tensor_plan, runs, n), .n_min = 1, .part = &run_fields},
};
const struct zps_fields zps_control_plan = {.name = "tensor.plan", ZPS_FIELDS_OF(struct zps_tensor_plan, plan)};
