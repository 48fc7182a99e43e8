#include "proto/control_next.h"

static const struct zps_field next[] = {
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_next_spec, join), .part = &zps_control_join},
    {"min_world", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, min_world), .min = 1, .max = ZPS_WORLD_MAX},
    {"max_world", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, max_world), .min = 1, .max = ZPS_WORLD_MAX},
    {"wait_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, wait_ms), .max = ZPS_TIMEOUT_MAX_MS},
    {"step", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, step)},
};
static const struct zps_fields next_fields = {.name = "job.next", ZPS_FIELDS_OF(struct zps_next_spec, next)};

/* Of a process that was in a generation. */
static const struct zps_field last[] = {
    {"generation", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, generation), .min = 1, .max = UINT32_MAX - 1},
    {"last_rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, last_rank), .max = ZPS_WORLD_MAX - 1},
    {"last_job", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_next_spec, last_job)},
};
static const struct zps_fields last_fields = {.name = "job.next", ZPS_FIELDS_OF(struct zps_next_spec, last)};

zps_json *zps_control_next_write(const struct zps_next_spec *spec) {
  zps_json *const params = zps_fields_write(&next_fields, spec);
  return spec->generation ? zps_fields_add(params, &last_fields, spec) : params;
}

zps_err_t zps_control_next_read(const zps_json *params, struct zps_next_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) {
  *fabric = (struct zps_net_info){.addr_len = 0};
  *spec = (struct zps_next_spec){.join = {.fabric = fabric}};
  const zps_err_t err = zps_fields_complete(&next_fields, params, spec, error);
  return err || !zps_json_get(params, "generation") ? err : zps_fields_complete(&last_fields, params, spec, error);
}

zps_json *zps_control_generation_write(zps_json *object, const struct zps_generation *generation, uint32_t rank,
                                       uint32_t world) {
  if (generation->number == 0) return object;
  object = zps_json_set_u64(object, "generation", generation->number);
  object = zps_json_set_u64(object, "rank", rank);
  object = zps_json_set_u64(object, "world", world);
  object = zps_json_set_u64(object, "source", generation->source);
  return zps_json_set_u64(object, "step", generation->step);
}

zps_err_t zps_control_generation_read(const zps_json *object, struct zps_generation *generation, uint32_t *rank_p,
                                      uint32_t *world_p, struct zps_error *error) {
  *generation = (struct zps_generation){.number = 0};
  if (!zps_json_get(object, "generation")) return ZPS_OK;
  zps_err_t err = zps_control_get_u32(object, "generation", 1, UINT32_MAX, &generation->number, error);
  if (!err) err = zps_control_get_u32(object, "world", 1, ZPS_WORLD_MAX, world_p, error);
  if (!err) err = zps_control_get_u32(object, "rank", 0, *world_p - 1, rank_p, error);
  if (!err) err = zps_control_get_u32(object, "source", 0, *world_p - 1, &generation->source, error);
  return err ? err : zps_json_get_u64(object, "step", 0, UINT64_MAX, &generation->step, error);
}

zps_json *zps_control_leave_write(uint64_t job_id, bool moves) {
  zps_json *params = zps_control_job_id_write(job_id);
  return moves ? zps_json_set_bool(params, "next", true) : params;
}

bool zps_control_leave_moves(const zps_json *params) {
  return zps_json_opt_bool(params, "next", false);
}
