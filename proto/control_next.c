#include "proto/control_next.h"

zps_json *zps_control_next_write(const struct zps_next_spec *spec) {
  zps_json *params = zps_json_set_u64(zps_control_join_write(&spec->join), "min_world", spec->min_world);
  params = zps_json_set_u64(params, "max_world", spec->max_world);
  params = zps_json_set_u64(params, "wait_ms", spec->wait_ms);
  params = zps_json_set_u64(params, "step", spec->step);
  if (spec->generation == 0) return params;
  params = zps_json_set_u64(params, "generation", spec->generation);
  params = zps_json_set_u64(params, "last_rank", spec->last_rank);
  return zps_json_set_hex(params, "last_job", spec->last_job);
}

zps_err_t zps_control_next_read(const zps_json *params, struct zps_next_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) {
  *spec = (struct zps_next_spec){.generation = 0};
  zps_err_t err = zps_control_join_read(params, &spec->join, fabric, error);
  if (!err) err = zps_control_get_u32(params, "min_world", 1, ZPS_WORLD_MAX, &spec->min_world, error);
  if (!err) err = zps_control_get_u32(params, "max_world", 1, ZPS_WORLD_MAX, &spec->max_world, error);
  if (!err) err = zps_json_get_u64(params, "wait_ms", 0, ZPS_TIMEOUT_MAX_MS, &spec->wait_ms, error);
  if (!err) err = zps_json_get_u64(params, "step", 0, UINT64_MAX, &spec->step, error);
  if (err || !zps_json_get(params, "generation")) return err;
  err = zps_control_get_u32(params, "generation", 1, UINT32_MAX - 1, &spec->generation, error);
  if (!err) err = zps_control_get_u32(params, "last_rank", 0, ZPS_WORLD_MAX - 1, &spec->last_rank, error);
  return err ? err : zps_json_get_hex(params, "last_job", &spec->last_job, error);
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
