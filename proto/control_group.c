#include "proto/control_group.h"

#include <stdlib.h>

zps_json *zps_control_group_open_write(const struct zps_group_spec *spec) {
  zps_json *params = zps_control_group_close_write(spec->job_id, spec->name);
  params = zps_json_set_u64(params, "timeout_ms", spec->timeout_ms);
  return zps_control_set_u32s(params, "ranks", spec->ranks, spec->n_ranks);
}

zps_err_t zps_control_group_open_read(const zps_json *params, struct zps_group_spec *spec, struct zps_error *error) {
  uint32_t *ranks;
  *spec = (struct zps_group_spec){0};
  zps_err_t err = zps_control_job_id_read(params, &spec->job_id, error);
  if (!err) err = zps_control_get_text(params, "group", 1, ZPS_NAME_MAX, spec->name, error);
  if (!err) err = zps_json_get_u64(params, "timeout_ms", 0, ZPS_TIMEOUT_MAX_MS, &spec->timeout_ms, error);
  if (!err) err = zps_control_get_u32s(params, "ranks", ZPS_WORLD_MAX, ZPS_WORLD_MAX, &ranks, &spec->n_ranks, error);
  if (!err) spec->ranks = ranks;
  return err;
}

void zps_group_spec_fini(struct zps_group_spec *spec) {
  free((void *)spec->ranks);
  spec->ranks = NULL;
}

zps_json *zps_control_group_close_write(uint64_t job_id, const char *group) {
  return zps_json_set_str(zps_control_job_id_write(job_id), "group", group);
}

zps_err_t zps_control_group_close_read(const zps_json *params, uint64_t *job_id_p, const char **group_p,
                                       struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  return err ? err : zps_control_get_name(params, "group", 1, ZPS_NAME_MAX, group_p, error);
}
