#include "proto/control_stats.h"

#define COUNT_MAX (1ull << 53) /* Programs that take JSON's numbers for doubles still tell counts below it apart. */

#define ROW(name) \
  {#name, ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tally, name), .max = COUNT_MAX, .optional = true, .always = true},
static const struct zps_field counters[] = {ZPS_TALLY_COUNTERS(ROW)};
#undef ROW
#define ROW(name, ms) \
  {#name, ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tally, name), .min = 1, .max = COUNT_MAX, .optional = true},
static const struct zps_field times[] = {ZPS_TALLY_TIMES(ROW)}; /* Most are 0. */
#undef ROW
static const struct zps_fields counters_fields = {ZPS_FIELDS_OF(struct zps_tally, counters)};
static const struct zps_fields times_fields = {ZPS_FIELDS_OF(struct zps_tally, times)};
static const struct zps_field tally[] = {
    {.type = ZPS_FIELD_PART, .part = &counters_fields},
    {"step", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tally, step), .optional = true, .always = true},
    {"scheme", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_tally, scheme), .optional = true, .always = true},
    {.type = ZPS_FIELD_PART, .part = &times_fields},
};
const struct zps_fields zps_control_tally = {ZPS_FIELDS_OF(struct zps_tally, tally)};

zps_json *zps_control_mishaps_write(zps_json *object, const struct zps_mishaps *from) {
#define WRITE(name) object = zps_json_set_u64(object, #name, from->name);
  ZPS_MISHAPS(WRITE)
#undef WRITE
  return object;
}

static const struct zps_field growth[] = {
    {"tensor", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tensor_growth, tensor)},
    {"done", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tensor_growth, done)},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_tensor_growth, growth), .part = &zps_control_tally},
};
const struct zps_fields zps_control_growth = {.name = "job.stats", ZPS_FIELDS_OF(struct zps_tensor_growth, growth)};

static zps_json *put_rows(const void *at) {
  return *(zps_json *const *)at;
}

static zps_err_t take_rows(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  *(const zps_json **)at = value;
  return zps_json_check_array(value, key, error);
}

#define ROW(name) \
  {#name, ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_mishaps, name), .min = 1, .max = COUNT_MAX, .optional = true},
static const struct zps_field mishaps[] = {ZPS_MISHAPS(ROW)};
#undef ROW
static const struct zps_fields mishaps_fields = {ZPS_FIELDS_OF(struct zps_mishaps, mishaps)};
static const struct zps_field rank_round[] = {
    {"tensor", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_round, tensor)},
    {"step", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_round, step)},
    {"age_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_round, age_ms), .max = COUNT_MAX},
    {"left_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_round, left_ms), .max = COUNT_MAX},
    {"ranks", ZPS_FIELD_NUMBER, ZPS_FIELD_ROW_AT(struct zps_rank_round, ranks, n_ranks), .optional = true},
};
static const struct zps_fields rank_round_fields = {ZPS_FIELDS_OF(struct zps_rank_round, rank_round)};
static const struct zps_field stats[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_rank_report, job_id)},
    {"tensors", ZPS_FIELD_OTHER, ZPS_FIELD_AT(struct zps_rank_report, rows), .put = put_rows, .take = take_rows,
     .form = "list of objects"},
    {"kept_bytes", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_report, kept_bytes), .min = 1, .max = COUNT_MAX,
     .optional = true},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_rank_report, mishaps), .part = &mishaps_fields},
    {"busy", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_report, load.busy), .min = 1, .max = 1000,
     .optional = true},
    {"starved", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_report, load.starved), .min = 1, .max = 1000,
     .optional = true},
    {"rounds", ZPS_FIELD_OBJECT, ZPS_FIELD_ROW_AT(struct zps_rank_report, rounds, n_rounds), .part = &rank_round_fields,
     .optional = true},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_rank_report, first), .part = &zps_control_error},
};
const struct zps_fields zps_control_stats = {.name = "job.stats", ZPS_FIELDS_OF(struct zps_rank_report, stats)};

zps_json *zps_control_stats_write(const struct zps_rank_report *from, zps_json *rows) {
  struct zps_rank_report sent = *from;
  sent.rows = rows;
  return zps_fields_write(&zps_control_stats, &sent);
}
