#include "proto/control_group.h"

static const struct zps_field group_open[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_group_spec, job_id)},
    {"group", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_group_spec, name), .min = 1},
    {"timeout_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_group_spec, timeout_ms), .max = ZPS_TIMEOUT_MAX_MS},
    {"ranks", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_group_spec, ranks, n_ranks), .n_min = 1,
     .n_max = ZPS_WORLD_MAX, .max = ZPS_WORLD_MAX - 1},
};
const struct zps_fields zps_control_group_open = {.name = "group.open",
                                                  ZPS_FIELDS_OF(struct zps_group_spec, group_open)};

static const struct zps_field group_close[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"group", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_job_call, text), .min = 1, .max = ZPS_NAME_MAX},
};
const struct zps_fields zps_control_group_close = {.name = "group.close",
                                                   ZPS_FIELDS_OF(struct zps_job_call, group_close)};
