#include "proto/control_server.h"

zps_json *zps_control_server_write(const struct zps_server_spec *spec) {
  zps_json *params = zps_json_set_str(zps_json_object(), "name", spec->name);
  params = zps_json_set_str(params, "host", spec->host);
  params = zps_json_set_u64(params, "pid", spec->pid);
  return zps_control_fabric_write(params, spec->fabric);
}

zps_err_t zps_control_server_read(const zps_json *params, struct zps_server_spec *spec, struct zps_net_info *fabric,
                                  struct zps_error *error) {
  zps_err_t err = zps_control_get_name(params, "name", 1, ZPS_NAME_MAX, &spec->name, error);
  if (!err) err = zps_control_get_name(params, "host", 1, ZPS_NAME_MAX, &spec->host, error);
  if (!err) err = zps_control_get_u32(params, "pid", 0, UINT32_MAX, &spec->pid, error);
  spec->fabric = fabric;
  return err ? err : zps_control_fabric_read(params, fabric, error);
}

zps_json *zps_control_server_answer_write(const struct zps_server_answer *answer) {
  zps_json *result = zps_json_set_u64(zps_json_object(), "server", answer->server);
  result = zps_json_set_u64(result, "epoch", answer->epoch);
  return zps_control_heartbeat_write(result, &answer->heartbeat);
}

zps_err_t zps_control_server_answer_read(const zps_json *result, struct zps_server_answer *answer,
                                         struct zps_error *error) {
  zps_err_t err = zps_control_get_u32(result, "server", 0, UINT32_MAX, &answer->server, error);
  if (!err) err = zps_control_get_u32(result, "epoch", 0, UINT32_MAX, &answer->epoch, error);
  return err ? err : zps_control_heartbeat_read(result, &answer->heartbeat, error);
}

zps_json *zps_control_drained_write(uint32_t jobs) {
  return zps_json_set_u64(zps_json_object(), "jobs", jobs);
}

zps_err_t zps_control_drained_read(const zps_json *result, uint32_t *jobs_p, struct zps_error *error) {
  return zps_control_get_u32(result, "jobs", 0, UINT32_MAX, jobs_p, error);
}
