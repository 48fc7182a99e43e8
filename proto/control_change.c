#include "proto/control_change.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"

/* ------------------------------------------------------------ job.view */

static const struct zps_field job_view[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_view, job_id)},
    {"view", ZPS_FIELD_OBJECT, ZPS_FIELD_AT(struct zps_job_view, view), .part = &zps_control_view},
};
const struct zps_fields zps_control_job_view = {.name = "job.view", ZPS_FIELDS_OF(struct zps_job_view, job_view)};

/* ------------------------------------------------------------ job.suspect */

static zps_err_t check_suspects(void *read, struct zps_error *error) {
  const struct zps_job_suspects *const suspects = read;
  for (uint32_t i = 1; i < suspects->n_servers; i++)
    if (suspects->servers[i] <= suspects->servers[i - 1])
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'servers' has %u after %u, want ascending positions",
                      suspects->servers[i], suspects->servers[i - 1]);
  return ZPS_OK;
}

static const struct zps_field suspect[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_suspects, job_id)},
    {"servers", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_job_suspects, servers, n_servers),
     .n_max = ZPS_SERVERS_MAX, .max = ZPS_SERVERS_MAX - 1, .optional = true},
    {"why", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_job_suspects, why), .optional = true},
};
const struct zps_fields zps_control_suspect = {
    .name = "job.suspect", ZPS_FIELDS_OF(struct zps_job_suspects, suspect), .check = check_suspects};

/* ------------------------------------------------------------ sets of steps */

static zps_err_t find_tensor(struct zps_job_steps *set, uint32_t tensor, struct zps_tensor_steps **of_p) {
  uint32_t at = set->n_tensors;
  while (at > 0 && set->tensors[at - 1].tensor > tensor) at--;
  if (at > 0 && set->tensors[at - 1].tensor == tensor) {
    *of_p = &set->tensors[at - 1];
    return ZPS_OK;
  }
  if (set->n_tensors >= ZPS_MAP_TENSORS_MAX) return ZPS_ERR_INVALID;
  if (!zps_enlarge_for_one(&set->tensors, &set->cap_tensors, set->n_tensors, 4, sizeof set->tensors[0]))
    return ZPS_ERR_NOMEM;
  memmove(&set->tensors[at + 1], &set->tensors[at], (set->n_tensors - at) * sizeof set->tensors[0]);
  set->tensors[at] = (struct zps_tensor_steps){.tensor = tensor};
  set->n_tensors++;
  *of_p = &set->tensors[at];
  return ZPS_OK;
}

static bool has_step(const struct zps_job_steps *set, uint32_t tensor, uint64_t step) {
  for (uint32_t i = 0; i < set->n_tensors; i++)
    for (uint32_t k = 0; set->tensors[i].tensor == tensor && k < set->tensors[i].n_steps; k++)
      if (set->tensors[i].steps[k] == step) return true;
  return false;
}

zps_err_t zps_job_steps_add(struct zps_job_steps *set, uint32_t tensor, uint64_t step) {
  struct zps_tensor_steps *of;
  if (set->n_all >= ZPS_MAP_ALL_STEPS_MAX && !has_step(set, tensor, step)) return ZPS_ERR_INVALID;
  const zps_err_t err = find_tensor(set, tensor, &of);
  if (err) return err;
  uint32_t at = of->n_steps;
  while (at > 0 && of->steps[at - 1] > step) at--;
  if (at > 0 && of->steps[at - 1] == step) return ZPS_OK;
  if (of->n_steps >= ZPS_MAP_STEPS_MAX) return ZPS_ERR_INVALID;
  if (!zps_enlarge_for_one(&of->steps, &of->cap_steps, of->n_steps, 4, sizeof of->steps[0])) return ZPS_ERR_NOMEM;
  memmove(&of->steps[at + 1], &of->steps[at], (of->n_steps - at) * sizeof of->steps[0]);
  of->steps[at] = step;
  of->n_steps++;
  set->n_all++;
  return ZPS_OK;
}

static const struct zps_tensor_steps *steps_of(const struct zps_job_steps *set, uint32_t tensor) {
  for (uint32_t i = 0; i < set->n_tensors; i++)
    if (set->tensors[i].tensor == tensor) return &set->tensors[i];
  return NULL;
}

const struct zps_step_late *zps_job_steps_decided(const struct zps_job_steps *set, uint32_t tensor, uint64_t step) {
  const struct zps_tensor_steps *const of = steps_of(set, tensor);
  for (uint32_t i = 0; of && i < of->n_decided; i++)
    if (of->decided[i].step == step) return &of->decided[i];
  return NULL;
}

bool zps_job_steps_oldest_decided(const struct zps_job_steps *set, uint32_t tensor, uint64_t *step_p) {
  const struct zps_tensor_steps *const of = steps_of(set, tensor);
  if (!of || of->n_decided == 0) return false;
  *step_p = of->decided[0].step;
  return true;
}

zps_err_t zps_job_steps_decide(struct zps_job_steps *set, uint32_t tensor, uint64_t step) {
  zps_err_t err = zps_job_steps_add(set, tensor, step);
  if (err || zps_job_steps_decided(set, tensor, step)) return err;
  struct zps_tensor_steps *of;
  err = find_tensor(set, tensor, &of);
  if (err) return err;
  if (!zps_enlarge_for_one(&of->decided, &of->cap_decided, of->n_decided, 4, sizeof of->decided[0]))
    return ZPS_ERR_NOMEM;
  uint32_t at = of->n_decided++;
  for (; at > 0 && of->decided[at - 1].step > step; at--) of->decided[at] = of->decided[at - 1];
  of->decided[at] = (struct zps_step_late){.step = step};
  return ZPS_OK;
}

zps_err_t zps_job_steps_decide_late(struct zps_job_steps *set, uint32_t tensor, uint64_t step, uint32_t rank) {
  struct zps_step_late *const decided = (struct zps_step_late *)zps_job_steps_decided(set, tensor, step);
  if (!decided || (decided->n_late > 0 && decided->late[decided->n_late - 1] >= rank)) return ZPS_ERR_INVALID;
  if (set->n_all >= ZPS_MAP_ALL_STEPS_MAX) return ZPS_ERR_INVALID;
  if (!zps_enlarge_for_one(&decided->late, &decided->cap_late, decided->n_late, 4, sizeof decided->late[0]))
    return ZPS_ERR_NOMEM;
  decided->late[decided->n_late++] = rank;
  set->n_all++;
  return ZPS_OK;
}

zps_err_t zps_job_steps_merge_tensor(struct zps_job_steps *set, const struct zps_tensor_steps *from) {
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; i < from->n_steps && !err; i++) err = zps_job_steps_add(set, from->tensor, from->steps[i]);
  for (uint32_t i = 0; i < from->n_decided && !err; i++) {
    const struct zps_step_late *const decided = &from->decided[i];
    if (zps_job_steps_decided(set, from->tensor, decided->step)) continue;
    err = zps_job_steps_decide(set, from->tensor, decided->step);
    for (uint32_t k = 0; k < decided->n_late && !err; k++)
      err = zps_job_steps_decide_late(set, from->tensor, decided->step, decided->late[k]);
  }
  return err;
}

zps_err_t zps_job_steps_merge(struct zps_job_steps *set, const struct zps_job_steps *from) {
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; i < from->n_tensors && !err; i++) err = zps_job_steps_merge_tensor(set, &from->tensors[i]);
  return err;
}

void zps_job_steps_fini(struct zps_job_steps *set) {
  for (uint32_t i = 0; i < set->n_tensors; i++) {
    struct zps_tensor_steps *const of = &set->tensors[i];
    for (uint32_t k = 0; k < of->n_decided; k++) free(of->decided[k].late);
    free(of->decided);
    free(of->steps);
  }
  free(set->tensors);
  *set = (struct zps_job_steps){0};
}

/* ------------------------------------------------------------ job.mapped and job.replay */

static zps_err_t check_late(void *read, struct zps_error *error) {
  const struct zps_step_late *const decided = read;
  for (uint32_t i = 1; i < decided->n_late; i++)
    if (decided->late[i] <= decided->late[i - 1])
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'late' has %u after %u, want ascending ranks", decided->late[i],
                      decided->late[i - 1]);
  return ZPS_OK;
}
static const struct zps_field step_late[] = {
    {"step", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_step_late, step)},
    {"late", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_step_late, late, n_late), .n_max = ZPS_WORLD_MAX,
     .max = ZPS_WORLD_MAX - 1, .optional = true},
};
static const struct zps_fields step_late_fields = {ZPS_FIELDS_OF(struct zps_step_late, step_late), .check = check_late};
static const struct zps_field tensor_steps[] = {
    {"tensor", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_tensor_steps, tensor)},
    {"steps", ZPS_FIELD_HEX, ZPS_FIELD_LIST_AT(struct zps_tensor_steps, steps, n_steps), .n_min = 1,
     .n_max = ZPS_MAP_STEPS_MAX},
    {"decided", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct zps_tensor_steps, decided, n_decided), .n_min = 1,
     .n_max = ZPS_MAP_STEPS_MAX, .part = &step_late_fields, .optional = true},
};
static const struct zps_fields tensor_steps_fields = {ZPS_FIELDS_OF(struct zps_tensor_steps, tensor_steps)};
static const struct zps_field job_steps[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_steps, job_id)},
    {"epoch", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_steps, epoch)},
    {"tensors", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct zps_job_steps, tensors, n_tensors),
     .n_max = ZPS_MAP_TENSORS_MAX, .part = &tensor_steps_fields},
    {"too_many", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_job_steps, is_too_many), .optional = true},
};

static zps_err_t add_steps(struct zps_job_steps *set, const struct zps_tensor_steps *of, struct zps_error *error) {
  const zps_err_t err = zps_job_steps_merge_tensor(set, of);
  if (err == ZPS_ERR_INVALID && set->n_all >= ZPS_MAP_ALL_STEPS_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "tensor %u: its steps and those before are more than %u", of->tensor,
                    ZPS_MAP_ALL_STEPS_MAX);
  if (err == ZPS_ERR_INVALID)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "tensor %u has more than %u steps", of->tensor, ZPS_MAP_STEPS_MAX);
  return err ? zps_fail(error, err, "no memory for the steps of tensor %u", of->tensor) : ZPS_OK;
}

/* The set is in order, whatever the order of the message. */
static zps_err_t sort_steps(void *read, struct zps_error *error) {
  struct zps_job_steps *const set = read, sorted = *set;
  sorted.n_all = sorted.n_tensors = sorted.cap_tensors = 0;
  sorted.tensors = NULL;
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; !err && i < set->n_tensors; i++) err = add_steps(&sorted, &set->tensors[i], error);
  zps_job_steps_fini(set);
  *set = sorted;
  return err;
}
const struct zps_fields zps_control_job_steps = {
    .name = "steps of a job", ZPS_FIELDS_OF(struct zps_job_steps, job_steps), .check = sort_steps};
