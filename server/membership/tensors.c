/* The tensors of a job: registered by the first rank that asks, the same for all others, opened on every server.
 * closes.c has their end. */
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "server/membership/layout.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/config.h"
#include "common/base/log.h"

void zps_member_tensor_free(struct zps_member_tensor *tensor) {
  zps_members_plan_destroy(tensor->plan);
  free(tensor->opened);
  zps_tensor_spec_fini(&tensor->spec);
  free(tensor);
}

void zps_members_tensors_free(struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++) zps_member_tensor_free(job->tensors[i]);
  free(job->tensors);
}

void zps_members_tensor_answer(struct zps_members *members, const struct zps_member_job *job,
                               struct zps_member_tensor *tensor, enum zps_action_type done,
                               const struct zps_member_client *client, zps_err_t code, const char *text) {
  struct zps_member_request **link = done == ZPS_ACT_TENSOR_DONE ? &tensor->openers : &tensor->closers;
  while (*link) {
    struct zps_member_request *const request = *link;
    if (client && request->client != client) {
      link = &request->next;
      continue;
    }
    *link = request->next;
    zps_members_act(members, .type = code ? ZPS_ACT_TENSOR_FAILED : done, .client = request->client,
                    .token = request->token, .job = job, .tensor = tensor, .code = code, .text = text);
    free(request);
  }
}

/* Servers leave the job, or are lost to it, which its ranks have not heard: they would push to one that lives, and does
 * not have to open the tensor any more. */
static bool is_held(const struct zps_member_job *job) {
  return job->map.state == ZPS_MAP_SERVERS;
}

/* The group that it is a tensor of; NULL: of all ranks. */
static zps_err_t find_group(const struct zps_member_job *job, const struct zps_tensor_spec *spec, uint32_t rank,
                            const struct zps_member_group **group_p, struct zps_error *error) {
  uint32_t place;
  *group_p = NULL;
  if (!spec->group[0]) return ZPS_OK;
  const struct zps_member_group *group = zps_members_group_find(job, spec->group);
  if (!group || !group->is_met)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "tensor '%s': job '%s' has no group '%s' open", spec->name, job->name,
                    spec->group);
  if (!zps_members_group_has(group, rank, &place))
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s': rank %u is none of group '%s'", spec->name, rank,
                    spec->group);
  *group_p = group;
  return ZPS_OK;
}

static zps_err_t check_ranks(const struct zps_member_job *job, const struct zps_member_group *group,
                             const struct zps_tensor_spec *spec, struct zps_error *error) {
  for (uint32_t i = 0; i < spec->n_ranks; i++) {
    uint32_t place;
    if (spec->ranks[i] >= job->world || (i > 0 && spec->ranks[i] <= spec->ranks[i - 1]))
      return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s': the ranks that push it must ascend and be below %u",
                      spec->name, job->world);
    if (group && !zps_members_group_has(group, spec->ranks[i], &place))
      return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s': rank %u is to push it, and is none of group '%s'",
                      spec->name, spec->ranks[i], spec->group);
  }
  return ZPS_OK;
}

static zps_err_t check_quorum(const struct zps_member_job *job, const struct zps_member_group *group,
                              const struct zps_tensor_spec *spec, struct zps_error *error) {
  const uint32_t world = spec->n_ranks ? spec->n_ranks : group ? group->n_ranks : job->world;
  if (spec->quorum > world)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s': a quorum of %u ranks, and %u push it; want 1 to %u",
                    spec->name, spec->quorum, world, world);
  if (spec->quorum == 0 || strcmp(spec->scheme.name, "balanced") == 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "tensor '%s': a quorum is for scheme balanced, not for %s", spec->name,
                  spec->scheme.name);
}

/* Fills in the defaults and checks what one rank asks for. *layout_p is left alone where rows lie in even ranges. */
static zps_err_t complete(const struct zps_member_job *job, const struct zps_tensor_spec *asked, uint32_t rank,
                          struct zps_tensor_spec *spec, struct zps_layout *layout_p, struct zps_error *error) {
  const struct zps_member_group *group;
  *spec = *asked;
  spec->owners = NULL;
  if (!zps_members_name_ok(spec->name))
    return zps_fail(error, ZPS_ERR_INVALID, "tensor names are 1 to %u printable bytes", ZPS_NAME_MAX);
  if (spec->rows == 0 || spec->rows > ZPS_PARTITION_ROWS_MAX || spec->width == 0 || spec->width > ZPS_TENSOR_WIDTH_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s': %llu rows of width %u; rows are 1 to 2^40, widths 1 to 2^20",
                    spec->name, (unsigned long long)spec->rows, spec->width);
  zps_err_t err = find_group(job, spec, rank, &group, error);
  if (err) return err;
  if (spec->n_parts > ZPS_PARTITION_PARTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s': %u partitions asked for, at most %u are possible", spec->name,
                    spec->n_parts, ZPS_PARTITION_PARTS_MAX);
  if (spec->block_bits == ZPS_BLOCK_BITS_DEFAULT) spec->block_bits = 0;
  if (zps_layout_is_even(spec->scheme.name)) {
    if (spec->n_parts || spec->block_bits)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor '%s': scheme %s lays rows out itself: it takes no number of partitions, no block_bits",
                      spec->name, spec->scheme.name);
    zps_layout_even(spec->rows, spec->width, job->view.n_first, job->view.n_places, &spec->n_parts, &spec->block_bits);
  } else {
    *layout_p = zps_layout_of(spec->rows, spec->width, spec->dtype, group ? group->n_ranks : job->world,
                              job->view.n_first, job->view.n_places, spec->n_parts);
    spec->n_parts = layout_p->n_parts;
    if (spec->quorum > 0) layout_p->n_owners = 1; /* one server decides which ranks are in a round's sum */
  }
  err = check_ranks(job, group, spec, error);
  if (!err) err = check_quorum(job, group, spec, error);
  if (err) return err;
  if (group && spec->n_ranks == 0) {
    spec->ranks = group->ranks;
    spec->n_ranks = group->n_ranks;
  }
  if (zps_partitioner_hashes(spec->partitioner) && zps_layout_is_even(spec->scheme.name))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor '%s': scheme %s lays rows out in ranges: partitioner %s hashes none", spec->name,
                    spec->scheme.name, zps_partitioner_name(spec->partitioner));
  struct zps_partition part;
  err = zps_partition_init(&part, spec->rows, spec->n_parts, spec->block_bits, job->seed, error);
  return err ? err
             : zps_partitioner_check(spec->partitioner, &spec->hashing, spec->rows, spec->n_parts, spec->block_bits,
                                     error);
}

static zps_err_t compare(const struct zps_member_job *job, const struct zps_member_tensor *tensor,
                         const struct zps_tensor_spec *spec, uint32_t rank, struct zps_error *error) {
  const struct zps_tensor_spec *first = &tensor->spec;
  char theirs[ZPS_TENSOR_TEXT_MAX + 1], ours[ZPS_TENSOR_TEXT_MAX + 1];
  if (zps_tensor_spec_same(first, spec)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_SHAPE,
                  "tensor '%.60s' is %s since rank %u (host %.40s) registered it, rank %u (host %.40s) says %s",
                  spec->name, zps_tensor_spec_text(first, theirs), tensor->first_rank,
                  job->ranks[tensor->first_rank]->host, rank, job->ranks[rank]->host, zps_tensor_spec_text(spec, ours));
}

static void set_owners(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                       const struct zps_layout *layout, uint32_t *owners) {
  struct zps_partition part;
  if (zps_layout_is_even(spec->scheme.name) &&
      zps_partition_init(&part, spec->rows, spec->n_parts, spec->block_bits, job->seed, NULL) == ZPS_OK)
    zps_layout_even_owners(&part, spec->tensor, job->view.n_places, owners);
  else
    zps_layout_owners(layout, spec->tensor, job->view.n_places, owners);
}

/* Without number and owners, for which there is room. */
static zps_err_t tensor_make(struct zps_member_job *job, const struct zps_tensor_spec *spec, uint32_t rank,
                             struct zps_member_tensor **tensor_p, uint32_t **owners_p, struct zps_error *error) {
  if (!zps_enlarge_for_one(&job->tensors, &job->cap_tensors, job->n_tensors, 8, sizeof *job->tensors))
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor '%s'", spec->name);
  struct zps_member_plan *plan;
  const zps_err_t err = zps_members_plan_create(job, spec, &plan, error);
  if (err) return err;
  struct zps_member_tensor *tensor = calloc(1, sizeof *tensor);
  bool *opened = calloc(job->view.n_places, sizeof *opened);
  uint32_t *owners = calloc(spec->n_parts, sizeof *owners);
  uint32_t *ranks = spec->n_ranks ? calloc(spec->n_ranks, sizeof *ranks) : NULL;
  if (!tensor || !opened || !owners || (spec->n_ranks && !ranks)) {
    zps_members_plan_destroy(plan);
    free(tensor);
    free(opened);
    free(owners);
    free(ranks);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor '%s'", spec->name);
  }
  tensor->plan = plan;
  tensor->spec = *spec;
  tensor->spec.job_id = job->job_id;
  tensor->spec.owners = owners;
  if (ranks) memcpy(ranks, spec->ranks, spec->n_ranks * sizeof *ranks);
  tensor->spec.ranks = ranks;
  tensor->first_rank = rank;
  tensor->opened = opened;
  *tensor_p = tensor;
  *owners_p = owners;
  return ZPS_OK;
}

static zps_err_t check_limits(const struct zps_members *members, const struct zps_member_job *job,
                              const struct zps_tensor_spec *spec, struct zps_error *error) {
  uint64_t n_parts = spec->n_parts;
  if (job->n_tensors >= members->config.max_tensors)
    return zps_fail(error, ZPS_ERR_QUOTA, "job '%s' has %u tensors, and a job may have %u (%s)", job->name,
                    job->n_tensors, members->config.max_tensors, zps_config_label("job.max_tensors"));
  for (uint32_t i = 0; i < job->n_tensors; i++) n_parts += job->tensors[i]->spec.n_parts;
  if (n_parts <= ZPS_JOB_PARTS_MAX) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_QUOTA,
                  "tensor '%s' has %u partitions: job '%s' would have %llu, and a job may have %u: ask for fewer",
                  spec->name, spec->n_parts, job->name, (unsigned long long)n_parts, ZPS_JOB_PARTS_MAX);
}

static zps_err_t tensor_add(struct zps_members *members, struct zps_member_job *job, const struct zps_tensor_spec *spec,
                            const struct zps_layout *layout, uint32_t rank, struct zps_member_tensor **tensor_p,
                            struct zps_error *error) {
  uint32_t *owners = NULL;
  zps_err_t err = check_limits(members, job, spec, error);
  if (!err) err = tensor_make(job, spec, rank, tensor_p, &owners, error);
  if (err) return err;
  (*tensor_p)->spec.tensor = job->next_tensor++;
  /* Free places get owners, too: the rule moves their partitions on. */
  set_owners(job, &(*tensor_p)->spec, layout, owners);
  job->tensors[job->n_tensors++] = *tensor_p;
  zps_members_note(members, .type = ZPS_NOTE_TENSOR, .job = job, .tensor = *tensor_p);
  return ZPS_OK;
}

zps_err_t zps_members_tensor_append(struct zps_member_job *job, const struct zps_tensor_spec *spec, uint32_t first_rank,
                                    struct zps_member_tensor **tensor_p) {
  uint32_t *owners = NULL;
  if (job->n_tensors && job->tensors[job->n_tensors - 1]->spec.tensor >= spec->tensor) return ZPS_ERR_PROTOCOL;
  const zps_err_t err = tensor_make(job, spec, first_rank, tensor_p, &owners, NULL);
  if (err) return err;
  memcpy(owners, spec->owners, spec->n_parts * sizeof *owners);
  if (job->next_tensor <= spec->tensor) job->next_tensor = spec->tensor + 1;
  job->tensors[job->n_tensors++] = *tensor_p;
  return ZPS_OK;
}

zps_err_t zps_members_tensor_owners(struct zps_member_tensor *tensor, const struct zps_tensor_spec *spec) {
  if (tensor->spec.n_parts != spec->n_parts) return ZPS_ERR_PROTOCOL;
  memcpy((uint32_t *)(uintptr_t)tensor->spec.owners, spec->owners, spec->n_parts * sizeof *spec->owners);
  return ZPS_OK;
}

void zps_members_tensor_remove(struct zps_member_job *job, struct zps_member_tensor *tensor) {
  uint32_t at = 0;
  while (job->tensors[at] != tensor) at++;
  memmove(job->tensors + at, job->tensors + at + 1, (job->n_tensors - at - 1) * sizeof *job->tensors);
  job->n_tensors--;
  zps_member_tensor_free(tensor);
}

zps_err_t zps_members_tensor_register(struct zps_members *members, struct zps_member_client *client,
                                      const struct zps_tensor_spec *asked, void *token, struct zps_error *error) {
  struct zps_member_job *job = client->job;
  if (!job || job->job_id != asked->job_id)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx",
                    (unsigned long long)asked->job_id);
  if (job->state == ZPS_JOB_CLOSING) return zps_fail(error, job->error.code, "%s", job->error.text);
  if (job->state != ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' is %s: tensors follow the answer to job.join", job->name,
                    zps_job_state_name(job->state));
  struct zps_tensor_spec spec;
  struct zps_layout layout = {0};
  zps_err_t err = complete(job, asked, client->rank, &spec, &layout, error);
  if (err) return err;
  struct zps_member_tensor *tensor = NULL;
  for (uint32_t i = 0; i < job->n_tensors && !tensor; i++) {
    const struct zps_tensor_spec *other = &job->tensors[i]->spec;
    if (strcmp(other->name, spec.name) == 0 && strcmp(other->group, spec.group) == 0) tensor = job->tensors[i];
  }
  if (tensor) {
    err = compare(job, tensor, &spec, client->rank, error);
    if (err) return err;
    if (tensor->state == ZPS_TENSOR_FAILED) return zps_fail(error, tensor->error.code, "%s", tensor->error.text);
  }
  struct zps_member_request *const opener = calloc(1, sizeof *opener);
  if (!opener) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor '%s'", spec.name);
  const bool is_new = !tensor;
  if (is_new) err = tensor_add(members, job, &spec, &layout, client->rank, &tensor, error);
  if (err) {
    free(opener);
    return err;
  }
  *opener = (struct zps_member_request){.client = client, .token = token, .next = tensor->openers};
  tensor->openers = opener;
  if (!is_new) return ZPS_OK;
  job->version++;
  zps_log_about(.job = job->name, .tensor = spec.name);
  zps_log_info("job '%s': tensor %u '%s', %llu x %u %s in %u partitions", job->name, tensor->spec.tensor, spec.name,
               (unsigned long long)spec.rows, spec.width, zps_dtype_name(spec.dtype), spec.n_parts);
  zps_members_act_servers(members, job, (struct zps_action){.type = ZPS_ACT_TENSOR_OPEN, .tensor = tensor});
  return ZPS_OK;
}

static unsigned count_pending(const struct zps_member_job *job, const struct zps_member_tensor *tensor) {
  unsigned n = 0;
  for (uint32_t i = 0; i < job->view.n_places; i++) n += zps_view_server(&job->view, i) && !tensor->opened[i];
  return n;
}

void zps_members_tensors_open(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    struct zps_member_tensor *const tensor = job->tensors[i];
    if (tensor->state != ZPS_TENSOR_OPENING) continue;
    tensor->n_pending = count_pending(job, tensor);
    if (tensor->n_pending > 0) continue;
    tensor->state = ZPS_TENSOR_OPEN;
    tensor->opened_ns = members->now_ns;
    zps_members_note(members, .type = ZPS_NOTE_TENSOR_STATE, .job = job, .tensor = tensor);
  }
}

void zps_members_tensors_notify(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; !is_held(job) && i < job->n_tensors; i++)
    if (job->tensors[i]->state == ZPS_TENSOR_OPEN)
      zps_members_tensor_answer(members, job, job->tensors[i], ZPS_ACT_TENSOR_DONE, NULL, ZPS_OK, NULL);
}

void zps_members_tensor_opened(struct zps_members *members, struct zps_member_client *server, uint64_t job_id,
                               uint32_t number, zps_err_t code, const char *text) {
  struct zps_member_job *job = zps_members_job_find(members, job_id);
  if (!job || job->state != ZPS_JOB_RUNNING || !server->server) return;
  if (zps_members_joiner_answered(job, server->server, code, text)) return;
  struct zps_member_tensor *tensor = zps_members_tensor_find(job, number);
  if (!tensor || tensor->state != ZPS_TENSOR_OPENING || code == ZPS_ERR_CLOSED) return;
  uint32_t position = 0;
  while (position < job->view.n_places && zps_view_server(&job->view, position) != server->server) position++;
  if (position == job->view.n_places || tensor->opened[position]) return; /* it was asked twice */
  if (code) {
    tensor->state = ZPS_TENSOR_FAILED;
    zps_fail(&tensor->error, code, "tensor '%s' of job '%s': server '%s' (host %.40s): %s", tensor->spec.name,
             job->name, server->server->name, server->server->host, text);
    zps_log_about(.job = job->name, .server = server->server->name, .tensor = tensor->spec.name);
    zps_log_failure(ZPS_LOG_WARN, &tensor->error);
    zps_members_note(members, .type = ZPS_NOTE_TENSOR_STATE, .job = job, .tensor = tensor);
    zps_members_tensor_answer(members, job, tensor, ZPS_ACT_TENSOR_DONE, NULL, tensor->error.code, tensor->error.text);
    return;
  }
  tensor->opened[position] = true;
}

void zps_members_tensors_resume(struct zps_members *members, const struct zps_member_job *job, uint32_t position) {
  struct zps_member_client *const client = zps_view_server(&job->view, position)->client;
  zps_members_act(members, .type = ZPS_ACT_TENSORS_KEEP, .client = client, .job = job, .position = position);
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_member_tensor *tensor = job->tensors[i];
    if (tensor->state != ZPS_TENSOR_OPENING || tensor->opened[position]) continue;
    zps_members_act(members, .type = ZPS_ACT_TENSOR_OPEN, .client = client, .job = job, .tensor = tensor,
                    .position = position);
  }
}
