#include "proto/control_server.h"

#include <stdlib.h>

#define JOBS_MAX 65536u

zps_json *zps_control_server_write(const struct zps_server_spec *spec) {
  zps_json *params = zps_json_set_str(zps_json_object(), "name", spec->name);
  params = zps_json_set_str(params, "host", spec->host);
  params = zps_json_set_u64(params, "pid", spec->pid);
  params = zps_control_set_opt_word(params, "secret", spec->secret);
  params = zps_control_set_opt_word(params, "incarnation", spec->incarnation);
  if (spec->n_jobs) params = zps_control_set_words(params, "jobs", spec->jobs, spec->n_jobs);
  if (spec->draining) params = zps_json_set_bool(params, "draining", true);
  return zps_control_fabric_write(params, spec->fabric);
}

zps_err_t zps_control_server_read(const zps_json *params, struct zps_server_spec *spec, struct zps_net_info *fabric,
                                  struct zps_error *error) {
  *spec = (struct zps_server_spec){.fabric = fabric, .draining = zps_json_opt_bool(params, "draining", false)};
  zps_err_t err = zps_control_get_name(params, "name", 1, ZPS_NAME_MAX, &spec->name, error);
  if (!err) err = zps_control_get_name(params, "host", 1, ZPS_NAME_MAX, &spec->host, error);
  if (!err) err = zps_control_get_u32(params, "pid", 0, UINT32_MAX, &spec->pid, error);
  if (!err) err = zps_control_opt_word(params, "secret", &spec->secret, error);
  if (!err) err = zps_control_opt_word(params, "incarnation", &spec->incarnation, error);
  if (!err) err = zps_control_fabric_read(params, fabric, error);
  return err ? err : zps_control_get_words(params, "jobs", JOBS_MAX, &spec->jobs, &spec->n_jobs, error);
}

void zps_server_spec_fini(struct zps_server_spec *spec) {
  free(spec->jobs);
  spec->jobs = NULL;
}

zps_json *zps_control_server_answer_write(const struct zps_server_answer *answer) {
  zps_json *result = zps_json_set_u64(zps_json_object(), "server", answer->server);
  result = zps_json_set_u64(result, "epoch", answer->epoch);
  result = zps_control_set_opt_word(result, "incarnation", answer->incarnation);
  if (answer->n_jobs) result = zps_control_set_words(result, "jobs", answer->jobs, answer->n_jobs);
  return zps_control_heartbeat_write(result, &answer->heartbeat);
}

zps_err_t zps_control_server_answer_read(const zps_json *result, struct zps_server_answer *answer,
                                         struct zps_error *error) {
  *answer = (struct zps_server_answer){0};
  zps_err_t err = zps_control_get_u32(result, "server", 0, UINT32_MAX, &answer->server, error);
  if (!err) err = zps_control_get_u32(result, "epoch", 0, UINT32_MAX, &answer->epoch, error);
  if (!err) err = zps_control_heartbeat_read(result, &answer->heartbeat, error);
  if (!err) err = zps_control_opt_word(result, "incarnation", &answer->incarnation, error);
  return err ? err : zps_control_get_words(result, "jobs", JOBS_MAX, &answer->jobs, &answer->n_jobs, error);
}

void zps_server_answer_fini(struct zps_server_answer *answer) {
  free(answer->jobs);
  answer->jobs = NULL;
}

zps_json *zps_control_drained_write(uint32_t jobs) {
  return zps_json_set_u64(zps_json_object(), "jobs", jobs);
}

zps_err_t zps_control_drained_read(const zps_json *result, uint32_t *jobs_p, struct zps_error *error) {
  return zps_control_get_u32(result, "jobs", 0, UINT32_MAX, jobs_p, error);
}
