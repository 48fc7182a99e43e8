#include "proto/control_map.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ job.map */

static zps_json *epoch_write(uint64_t job_id, uint32_t epoch) {
  return zps_json_set_u64(zps_control_job_id_write(job_id), "epoch", epoch);
}

static zps_err_t epoch_read(const zps_json *params, uint64_t *job_id_p, uint32_t *epoch_p, struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  return err ? err : zps_control_get_u32(params, "epoch", 0, UINT32_MAX, epoch_p, error);
}

static zps_json *joined_write(const struct zps_joined_server *joined, uint32_t n) {
  zps_json *array = zps_json_array();
  for (uint32_t i = 0; i < n; i++) {
    const struct zps_join_server *const server = &joined[i].server;
    zps_json *object = zps_json_set_u64(zps_json_object(), "position", joined[i].position);
    object = zps_json_set_str(zps_json_set_u64(object, "since", joined[i].since), "name", server->name);
    array = zps_json_append(array, zps_json_set_bytes(object, "address", server->addr, server->addr_len));
  }
  return array;
}

zps_json *zps_control_job_map_write(const struct zps_job_map *map) {
  zps_json *params = zps_control_set_u32s(epoch_write(map->job_id, map->epoch), "lost", map->lost, map->n_lost);
  if (map->n_drained) params = zps_control_set_u32s(params, "drained", map->drained, map->n_drained);
  return map->n_joined ? zps_json_set(params, "joined", joined_write(map->joined, map->n_joined)) : params;
}

static zps_err_t joined_read(const zps_json *params, struct zps_job_map *map, struct zps_error *error) {
  const zps_json *array = NULL;
  zps_err_t err = zps_json_get_array(params, "joined", &array, error);
  const size_t n = zps_json_array_len(array);
  if (!err && n > ZPS_SERVERS_MAX)
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "member 'joined' has %zu elements, want at most %u", n, ZPS_SERVERS_MAX);
  if (!err && !(map->joined = calloc(n + 1, sizeof *map->joined)))
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the servers that have joined a job");
  for (uint32_t i = 0; !err && i < n; i++) {
    struct zps_joined_server *const joined = &map->joined[i];
    const zps_json *const object = zps_json_at(array, i);
    err = zps_control_get_u32(object, "position", 0, ZPS_SERVERS_MAX - 1, &joined->position, error);
    if (!err && i > 0 && joined->position <= joined[-1].position)
      err = zps_fail(error, ZPS_ERR_PROTOCOL, "member 'joined' has position %u after %u, want ascending positions",
                     joined->position, joined[-1].position);
    if (!err) err = zps_control_get_u32(object, "since", 1, UINT32_MAX, &joined->since, error);
    if (!err) err = zps_control_join_server_read(object, &joined->server, error);
    map->n_joined = i + 1;
  }
  return err;
}

static zps_err_t positions_read(const zps_json *params, const char *key, uint32_t **positions_p, uint32_t *n_p,
                                struct zps_error *error) {
  const zps_json *array = NULL;
  zps_err_t err = zps_json_get_array(params, key, &array, error);
  if (err || zps_json_array_len(array) == 0) return err;
  err = zps_control_get_u32s(params, key, ZPS_SERVERS_MAX, ZPS_SERVERS_MAX, positions_p, n_p, error);
  const uint32_t *const at = *positions_p;
  for (uint32_t i = 1; !err && i < *n_p; i++)
    if (at[i] <= at[i - 1])
      err = zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %u after %u, want ascending positions", key, at[i],
                     at[i - 1]);
  return err;
}

zps_err_t zps_control_job_map_read(const zps_json *params, struct zps_job_map *map, struct zps_error *error) {
  *map = (struct zps_job_map){0};
  zps_err_t err = epoch_read(params, &map->job_id, &map->epoch, error);
  if (!err) err = positions_read(params, "lost", &map->lost, &map->n_lost, error);
  if (!err && zps_json_get(params, "drained"))
    err = positions_read(params, "drained", &map->drained, &map->n_drained, error);
  if (!err && zps_json_get(params, "joined")) err = joined_read(params, map, error);
  if (!err && map->n_lost + map->n_joined == 0)
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "member 'lost' is empty, and there is no 'joined': one must name servers");
  if (err) zps_job_map_fini(map);
  return err;
}

void zps_job_map_fini(struct zps_job_map *map) {
  free(map->lost);
  free(map->drained);
  free(map->joined);
  *map = (struct zps_job_map){0};
}

/* NULL: an empty array has no copy, and a failed one sets *ok_p to false. */
static void *array_copy(const void *array, size_t n, size_t size, bool *ok_p) {
  void *const copy = n ? malloc(n * size) : NULL;
  if (copy) memcpy(copy, array, n * size);
  *ok_p = *ok_p && (copy || n == 0);
  return copy;
}

zps_err_t zps_job_map_copy(struct zps_job_map *copy, const struct zps_job_map *map) {
  bool ok = true;
  *copy = *map;
  copy->lost = array_copy(map->lost, map->n_lost, sizeof *map->lost, &ok);
  copy->drained = array_copy(map->drained, map->n_drained, sizeof *map->drained, &ok);
  copy->joined = array_copy(map->joined, map->n_joined, sizeof *map->joined, &ok);
  if (ok) return ZPS_OK;
  zps_job_map_fini(copy);
  return ZPS_ERR_NOMEM;
}

/* ------------------------------------------------------------ job.suspect */

zps_json *zps_control_suspect_write(const struct zps_job_suspects *suspects) {
  zps_json *params = zps_control_job_id_write(suspects->job_id);
  if (suspects->n_servers > 0) params = zps_control_set_u32s(params, "servers", suspects->servers, suspects->n_servers);
  return suspects->why[0] ? zps_json_set_str(params, "why", suspects->why) : params;
}

zps_err_t zps_control_suspect_read(const zps_json *params, struct zps_job_suspects *suspects, struct zps_error *error) {
  *suspects = (struct zps_job_suspects){0};
  zps_err_t err = zps_control_job_id_read(params, &suspects->job_id, error);
  if (!err && zps_json_get(params, "why"))
    err = zps_control_get_text(params, "why", 0, ZPS_SUSPECT_WHY_MAX, suspects->why, error);
  if (!err && zps_json_get(params, "servers"))
    err = positions_read(params, "servers", &suspects->servers, &suspects->n_servers, error);
  if (err) zps_job_suspects_fini(suspects);
  return err;
}

void zps_job_suspects_fini(struct zps_job_suspects *suspects) {
  free(suspects->servers);
  *suspects = (struct zps_job_suspects){0};
}

/* ------------------------------------------------------------ sets of steps */

/* Room for one more in an array of `n` elements of `size` bytes, doubled when it is full. */
static bool grow(void **array_p, uint32_t n, uint32_t *cap_p, size_t size) {
  if (n < *cap_p) return true;
  const uint32_t cap = *cap_p ? 2 * *cap_p : 4;
  void *const array = realloc(*array_p, cap * size);
  if (!array) return false;
  *array_p = array;
  *cap_p = cap;
  return true;
}

static zps_err_t find_tensor(struct zps_job_steps *set, uint32_t tensor, struct zps_tensor_steps **of_p) {
  uint32_t at = set->n_tensors;
  while (at > 0 && set->tensors[at - 1].tensor > tensor) at--;
  if (at > 0 && set->tensors[at - 1].tensor == tensor) {
    *of_p = &set->tensors[at - 1];
    return ZPS_OK;
  }
  if (set->n_tensors >= ZPS_MAP_TENSORS_MAX) return ZPS_ERR_INVALID;
  void *tensors = set->tensors;
  if (!grow(&tensors, set->n_tensors, &set->cap_tensors, sizeof set->tensors[0])) return ZPS_ERR_NOMEM;
  set->tensors = tensors;
  memmove(&set->tensors[at + 1], &set->tensors[at], (set->n_tensors - at) * sizeof set->tensors[0]);
  set->tensors[at] = (struct zps_tensor_steps){.tensor = tensor};
  set->n_tensors++;
  *of_p = &set->tensors[at];
  return ZPS_OK;
}

zps_err_t zps_job_steps_add(struct zps_job_steps *set, uint32_t tensor, uint64_t step) {
  struct zps_tensor_steps *of;
  const zps_err_t err = find_tensor(set, tensor, &of);
  if (err) return err;
  uint32_t at = of->n_steps;
  while (at > 0 && of->steps[at - 1] > step) at--;
  if (at > 0 && of->steps[at - 1] == step) return ZPS_OK;
  if (of->n_steps >= ZPS_MAP_STEPS_MAX) return ZPS_ERR_INVALID;
  void *steps = of->steps;
  if (!grow(&steps, of->n_steps, &of->cap_steps, sizeof of->steps[0])) return ZPS_ERR_NOMEM;
  of->steps = steps;
  memmove(&of->steps[at + 1], &of->steps[at], (of->n_steps - at) * sizeof of->steps[0]);
  of->steps[at] = step;
  of->n_steps++;
  return ZPS_OK;
}

void zps_job_steps_fini(struct zps_job_steps *set) {
  for (uint32_t i = 0; i < set->n_tensors; i++) free(set->tensors[i].steps);
  free(set->tensors);
  *set = (struct zps_job_steps){0};
}

/* ------------------------------------------------------------ job.mapped and job.replay */

zps_json *zps_control_job_steps_write(const struct zps_job_steps *set) {
  zps_json *tensors = zps_json_array();
  for (uint32_t i = 0; i < set->n_tensors; i++) {
    const struct zps_tensor_steps *of = &set->tensors[i];
    zps_json *steps = zps_json_array();
    for (uint32_t k = 0; k < of->n_steps; k++) steps = zps_json_append_hex(steps, of->steps[k]);
    zps_json *object = zps_json_set_u64(zps_json_object(), "tensor", of->tensor);
    tensors = zps_json_append(tensors, zps_json_set(object, "steps", steps));
  }
  return zps_json_set(epoch_write(set->job_id, set->epoch), "tensors", tensors);
}

static zps_err_t tensor_read(const zps_json *object, struct zps_job_steps *set, struct zps_error *error) {
  const zps_json *steps = NULL;
  uint32_t tensor = 0;
  zps_err_t err = zps_control_get_u32(object, "tensor", 0, UINT32_MAX, &tensor, error);
  if (!err) err = zps_json_get_array(object, "steps", &steps, error);
  const size_t n = zps_json_array_len(steps);
  if (!err && (n == 0 || n > ZPS_MAP_STEPS_MAX))
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "member 'steps' has %zu elements, want 1 to %u", n, ZPS_MAP_STEPS_MAX);
  for (size_t i = 0; i < n && !err; i++) {
    uint64_t step = 0;
    err = zps_json_at_hex(steps, i, &step, error);
    if (err) break;
    err = zps_job_steps_add(set, tensor, step);
    if (err == ZPS_ERR_INVALID)
      err = zps_fail(error, ZPS_ERR_PROTOCOL, "tensor %u has more than %u steps", tensor, ZPS_MAP_STEPS_MAX);
    else if (err)
      err = zps_fail(error, err, "no memory for the steps of tensor %u", tensor);
  }
  return err;
}

zps_err_t zps_control_job_steps_read(const zps_json *params, struct zps_job_steps *set, struct zps_error *error) {
  const zps_json *tensors = NULL;
  *set = (struct zps_job_steps){0};
  zps_err_t err = epoch_read(params, &set->job_id, &set->epoch, error);
  if (!err) err = zps_json_get_array(params, "tensors", &tensors, error);
  const size_t n = zps_json_array_len(tensors);
  if (!err && n > ZPS_MAP_TENSORS_MAX)
    err =
        zps_fail(error, ZPS_ERR_PROTOCOL, "member 'tensors' has %zu elements, want at most %u", n, ZPS_MAP_TENSORS_MAX);
  for (size_t i = 0; i < n && !err; i++) err = tensor_read(zps_json_at(tensors, i), set, error);
  if (err) zps_job_steps_fini(set);
  return err;
}
