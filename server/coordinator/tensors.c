/* The tensors of a job: registered by the first rank that asks, the same for all others, opened on every server; closed
 * when all ranks want it, with those of zenps's own that belong to them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/layout.h"
#include "server/coordinator/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static void tensor_free(struct zps_member_tensor *tensor) {
  zps_members_plan_destroy(tensor->plan);
  free(tensor->opened);
  zps_tensor_spec_fini(&tensor->spec);
  free(tensor);
}

void zps_members_tensors_free(struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++) tensor_free(job->tensors[i]);
  free(job->tensors);
}

struct zps_member_tensor *zps_members_tensor_find(const struct zps_member_job *job, uint32_t number) {
  uint32_t low = 0, high = job->n_tensors;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (job->tensors[middle]->spec.tensor < number)
      low = middle + 1;
    else
      high = middle;
  }
  return low < job->n_tensors && job->tensors[low]->spec.tensor == number ? job->tensors[low] : NULL;
}

static void answer(struct zps_members *members, struct zps_member_job *job, struct zps_member_tensor *tensor,
                   const struct zps_member_client *client, void *token, zps_err_t code, const char *text) {
  zps_members_act(members, &(struct zps_action){.type = code ? ZPS_ACT_TENSOR_FAILED : ZPS_ACT_TENSOR_DONE,
                                                .client = (struct zps_member_client *)client,
                                                .token = token,
                                                .job = job,
                                                .tensor = tensor,
                                                .code = code,
                                                .text = text});
}

static void answer_waiters(struct zps_members *members, struct zps_member_job *job, struct zps_member_tensor *tensor,
                           const struct zps_member_client *client, zps_err_t code, const char *text) {
  struct zps_member_waiter **link = &tensor->waiters;
  while (*link) {
    struct zps_member_waiter *waiter = *link;
    if (client && waiter->client != client) {
      link = &waiter->next;
      continue;
    }
    *link = waiter->next;
    answer(members, job, tensor, waiter->client, waiter->token, code, text);
    free(waiter);
  }
}

/* Takes the first closer (of `client`, unless it is NULL) out of the list; NULL: there is none. */
static struct zps_member_closer *take_closer(struct zps_member_tensor *tensor, const struct zps_member_client *client) {
  struct zps_member_closer **link = &tensor->closers;
  while (*link && client && (*link)->client != client) link = &(*link)->next;
  struct zps_member_closer *const closer = *link;
  if (closer) *link = closer->next;
  return closer;
}

static void answer_closer(struct zps_members *members, const struct zps_member_job *job,
                          const struct zps_member_tensor *tensor, struct zps_member_closer *closer, zps_err_t code,
                          const char *text) {
  zps_members_act(members, &(struct zps_action){.type = code ? ZPS_ACT_TENSOR_FAILED : ZPS_ACT_TENSOR_CLOSED,
                                                .client = closer->client,
                                                .token = closer->token,
                                                .job = job,
                                                .tensor = tensor,
                                                .code = code,
                                                .text = text});
  free(closer);
}

static void answer_closers(struct zps_members *members, const struct zps_member_job *job,
                           struct zps_member_tensor *tensor, const struct zps_member_client *client, zps_err_t code,
                           const char *text) {
  for (struct zps_member_closer *closer; (closer = take_closer(tensor, client)) != NULL;)
    answer_closer(members, job, tensor, closer, code, text);
}

void zps_members_tensors_fail(struct zps_members *members, struct zps_member_job *job,
                              const struct zps_member_client *client, zps_err_t code, const char *text) {
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    answer_waiters(members, job, job->tensors[i], client, code, text);
    answer_closers(members, job, job->tensors[i], client, code, text);
  }
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
    zps_layout_even(spec->rows, spec->width, job->n_servers, &spec->n_parts, &spec->block_bits);
  } else {
    *layout_p = zps_layout_of(spec->rows, spec->width, spec->dtype, group ? group->n_ranks : job->world, job->n_servers,
                              spec->n_parts);
    spec->n_parts = layout_p->n_parts;
  }
  err = check_ranks(job, group, spec, error);
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
    zps_layout_even_owners(&part, spec->tensor, job->n_servers, owners);
  else
    zps_layout_owners(layout, spec->tensor, job->n_servers, owners);
}

/* Without number and owners, for which there is room. */
static zps_err_t tensor_make(struct zps_members *members, struct zps_member_job *job,
                             const struct zps_tensor_spec *spec, uint32_t rank, struct zps_member_tensor **tensor_p,
                             uint32_t **owners_p, struct zps_error *error) {
  if (job->n_tensors >= members->config.max_tensors)
    return zps_fail(error, ZPS_ERR_QUOTA, "job '%s' has %u tensors, and a job may have %u (job.max_tensors)", job->name,
                    job->n_tensors, members->config.max_tensors);
  if (job->n_tensors == job->cap_tensors) {
    const uint32_t cap = job->cap_tensors ? 2 * job->cap_tensors : 8;
    struct zps_member_tensor **grown = realloc(job->tensors, cap * sizeof *grown);
    if (!grown) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor '%s'", spec->name);
    job->tensors = grown;
    job->cap_tensors = cap;
  }
  struct zps_member_plan *plan;
  const zps_err_t err = zps_members_plan_create(job, spec, &plan, error);
  if (err) return err;
  struct zps_member_tensor *tensor = calloc(1, sizeof *tensor);
  bool *opened = calloc(job->n_servers, sizeof *opened);
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
  for (uint32_t i = 0; i < job->n_servers; i++) {
    opened[i] = !job->servers[i]; /* a lost one is not asked */
    tensor->n_pending += !opened[i];
  }
  *tensor_p = tensor;
  *owners_p = owners;
  return ZPS_OK;
}

static zps_err_t tensor_add(struct zps_members *members, struct zps_member_job *job, const struct zps_tensor_spec *spec,
                            const struct zps_layout *layout, uint32_t rank, struct zps_member_tensor **tensor_p,
                            struct zps_error *error) {
  uint32_t *owners = NULL;
  const zps_err_t err = tensor_make(members, job, spec, rank, tensor_p, &owners, error);
  if (err) return err;
  (*tensor_p)->spec.tensor = job->next_tensor++;
  set_owners(job, &(*tensor_p)->spec, layout, owners);
  zps_members_map_owners(job, owners, spec->n_parts);
  job->tensors[job->n_tensors++] = *tensor_p;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_TENSOR, .job = job, .tensor = *tensor_p});
  return ZPS_OK;
}

zps_err_t zps_members_tensor_append(struct zps_members *members, struct zps_member_job *job,
                                    const struct zps_tensor_spec *spec, uint32_t first_rank,
                                    struct zps_member_tensor **tensor_p) {
  uint32_t *owners = NULL;
  if (job->n_tensors && job->tensors[job->n_tensors - 1]->spec.tensor >= spec->tensor) return ZPS_ERR_PROTOCOL;
  const zps_err_t err = tensor_make(members, job, spec, first_rank, tensor_p, &owners, NULL);
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
  tensor_free(tensor);
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
    if (tensor->state == ZPS_TENSOR_OPEN) {
      answer(members, job, tensor, client, token, ZPS_OK, NULL);
      return ZPS_OK;
    }
  }
  struct zps_member_waiter *waiter = calloc(1, sizeof *waiter);
  if (!waiter) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor '%s'", spec.name);
  waiter->client = client;
  waiter->token = token;
  if (tensor) {
    waiter->next = tensor->waiters;
    tensor->waiters = waiter;
    return ZPS_OK;
  }
  err = tensor_add(members, job, &spec, &layout, client->rank, &tensor, error);
  if (err) {
    free(waiter);
    return err;
  }
  tensor->waiters = waiter;
  zps_members_refill_end(members, job, "a tensor is registered");
  zps_log_info("job '%s': tensor %u '%s', %llu x %u %s in %u partitions", job->name, tensor->spec.tensor, spec.name,
               (unsigned long long)spec.rows, spec.width, zps_dtype_name(spec.dtype), spec.n_parts);
  for (uint32_t i = 0; i < job->n_servers; i++) {
    if (!job->servers[i]) continue;
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_TENSOR_OPEN,
                                                  .client = job->servers[i]->client,
                                                  .job = job,
                                                  .tensor = tensor,
                                                  .position = i});
  }
  return ZPS_OK;
}

/* The server at this position need not answer any more. */
static void answered(struct zps_members *members, struct zps_member_job *job, struct zps_member_tensor *tensor,
                     uint32_t position, uint64_t now_ns) {
  if (tensor->state != ZPS_TENSOR_OPENING || tensor->opened[position]) return;
  tensor->opened[position] = true;
  if (--tensor->n_pending > 0) return;
  tensor->state = ZPS_TENSOR_OPEN;
  tensor->opened_ns = now_ns;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_TENSOR_STATE, .job = job, .tensor = tensor});
  answer_waiters(members, job, tensor, NULL, ZPS_OK, NULL);
}

void zps_members_tensors_server_lost(struct zps_members *members, struct zps_member_job *job, uint32_t position) {
  for (uint32_t i = 0; i < job->n_tensors; i++) answered(members, job, job->tensors[i], position, members->now_ns);
}

void zps_members_tensor_opened(struct zps_members *members, struct zps_member_client *server, uint64_t job_id,
                               uint32_t number, zps_err_t code, const char *text, uint64_t now_ns) {
  struct zps_member_job *job = zps_members_job_find(members, job_id);
  if (!job || job->state != ZPS_JOB_RUNNING || !server->server) return;
  if (zps_members_refill_answered(members, job, server->server, code, text)) return;
  struct zps_member_tensor *tensor = zps_members_tensor_find(job, number);
  if (!tensor || tensor->state != ZPS_TENSOR_OPENING || code == ZPS_ERR_CLOSED) return;
  uint32_t position = 0;
  while (position < job->n_servers && job->servers[position] != server->server) position++;
  if (position == job->n_servers || tensor->opened[position]) return; /* it was asked twice */
  if (code) {
    tensor->state = ZPS_TENSOR_FAILED;
    zps_fail(&tensor->error, code, "tensor '%s' of job '%s': server '%s' (host %.40s): %s", tensor->spec.name,
             job->name, server->server->name, server->server->host, text);
    zps_log_warn("%s", tensor->error.text);
    zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_TENSOR_STATE, .job = job, .tensor = tensor});
    answer_waiters(members, job, tensor, NULL, tensor->error.code, tensor->error.text);
    return;
  }
  answered(members, job, tensor, position, now_ns);
}

void zps_members_tensors_resume(struct zps_members *members, const struct zps_member_job *job, uint32_t position) {
  struct zps_member_client *const client = job->servers[position]->client;
  zps_members_act(
      members, &(struct zps_action){.type = ZPS_ACT_TENSORS_KEEP, .client = client, .job = job, .position = position});
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_member_tensor *tensor = job->tensors[i];
    if (tensor->state != ZPS_TENSOR_OPENING || tensor->opened[position]) continue;
    zps_members_act(
        members,
        &(struct zps_action){
            .type = ZPS_ACT_TENSOR_OPEN, .client = client, .job = job, .tensor = tensor, .position = position});
  }
}

/* ------------------------------------------------------------ closed: forgotten by servers and coordinator */

static bool is_closer(const struct zps_member_tensor *tensor, const struct zps_member_client *client) {
  const struct zps_member_closer *closer = tensor->closers;
  while (closer && closer->client != client) closer = closer->next;
  return closer;
}

/* All ranks, or those of its group. */
static bool has_part(const struct zps_member_tensor *tensor, uint32_t rank) {
  for (uint32_t i = 0; i < tensor->spec.n_ranks; i++)
    if (tensor->spec.ranks[i] == rank) return true;
  return tensor->spec.n_ranks == 0;
}

static bool is_awaited(const struct zps_member_job *job, const struct zps_member_tensor *tensor, uint32_t rank) {
  const struct zps_member_rank *const of = job->ranks[rank];
  return of->state == ZPS_RANK_IN && has_part(tensor, rank) && !is_closer(tensor, of->client);
}

/* All ranks that have a part in it and are in the job want it, and one at least. */
static bool is_agreed(const struct zps_member_job *job, const struct zps_member_tensor *tensor) {
  if (!tensor->closers) return false;
  for (uint32_t r = 0; r < job->world; r++)
    if (is_awaited(job, tensor, r)) return false;
  return true;
}

/* The tensor, and those of zenps's own that belong to it. Names are their group's. */
static bool belongs(const struct zps_member_tensor *tensor, const struct zps_member_tensor *to) {
  return strcmp(tensor->spec.group, to->spec.group) == 0 &&
         strcmp(zps_tensor_owner_name(tensor->spec.name), to->spec.name) == 0;
}

static void tell_servers(struct zps_members *members, const struct zps_member_job *job,
                         const struct zps_member_tensor *tensor) {
  for (uint32_t i = 0; i < job->n_servers; i++) {
    if (!job->servers[i]) continue;
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_TENSOR_FORGET,
                                                  .client = job->servers[i]->client,
                                                  .job = job,
                                                  .tensor = tensor,
                                                  .position = i});
  }
}

/* Servers are told ahead of anything that they are told later, such as to open a tensor of the same name. */
static void close_all(struct zps_members *members, struct zps_member_job *job, struct zps_member_tensor *tensor) {
  uint32_t n_left = 0;
  zps_members_refill_end(members, job, "a tensor is closed");
  zps_log_info("job '%s': tensor %u '%s' is closed", job->name, tensor->spec.tensor, tensor->spec.name);
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    struct zps_member_tensor *const other = job->tensors[i];
    if (!belongs(other, tensor)) {
      job->tensors[n_left++] = other;
      continue;
    }
    zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_TENSOR_GONE, .job = job, .tensor = other});
    tell_servers(members, job, other);
    if (other == tensor) continue;
    answer_waiters(members, job, other, NULL, ZPS_ERR_CLOSED, "the tensor that it belongs to was closed");
    tensor_free(other);
  }
  job->n_tensors = n_left;
  answer_closers(members, job, tensor, NULL, ZPS_OK, NULL);
  tensor_free(tensor);
}

void zps_members_closes_try(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors;) {
    if (!is_agreed(job, job->tensors[i])) {
      i++;
      continue;
    }
    close_all(members, job, job->tensors[i]);
    i = 0; /* others may be gone with it */
  }
}

zps_err_t zps_members_tensor_close(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                   uint32_t number, uint64_t timeout_ms, void *token, uint64_t now_ns,
                                   struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  const zps_err_t err = zps_members_running(job, job_id, error);
  if (err) return err;
  struct zps_member_tensor *const tensor = zps_members_tensor_find(job, number);
  if (!tensor || tensor->state != ZPS_TENSOR_OPEN)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' has no open tensor %u", job->name, number);
  if (tensor->spec.name[0] == '@')
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s' is zenps's own: it is closed with the one it belongs to",
                    tensor->spec.name);
  if (!has_part(tensor, client->rank))
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s' is of group '%s', which rank %u is not in", tensor->spec.name,
                    tensor->spec.group, client->rank);
  if (is_closer(tensor, client))
    return zps_fail(error, ZPS_ERR_BUSY, "rank %u waits for the other ranks to close tensor '%s' already", client->rank,
                    tensor->spec.name);
  struct zps_member_closer *const closer = malloc(sizeof *closer);
  if (!closer) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to close tensor '%s'", tensor->spec.name);
  *closer = (struct zps_member_closer){.client = client,
                                       .token = token,
                                       .timeout_ms = timeout_ms,
                                       .deadline_ns = now_ns + timeout_ms * ZPS_NS_PER_MS,
                                       .next = tensor->closers};
  tensor->closers = closer;
  if (is_agreed(job, tensor)) close_all(members, job, tensor);
  return ZPS_OK;
}

/* "2, 5": the ranks that have not come. */
static void missing_ranks(const struct zps_member_job *job, const struct zps_member_tensor *tensor, char *buf,
                          size_t size) {
  size_t len = 0;
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world && len + 16 < size; r++)
    if (is_awaited(job, tensor, r)) len += (size_t)snprintf(buf + len, size - len, "%s%u", len ? ", " : "", r);
}

/* The first rank whose time is up ends it for all that wait: it would be missing, and they would name it. */
static uint64_t tensor_tick(struct zps_members *members, const struct zps_member_job *job,
                            struct zps_member_tensor *tensor, uint64_t now_ns) {
  const struct zps_member_closer *first = tensor->closers;
  char missing[200], text[600];
  for (const struct zps_member_closer *closer = first->next; closer; closer = closer->next)
    if (closer->deadline_ns < first->deadline_ns) first = closer;
  if (first->deadline_ns > now_ns) return first->deadline_ns;
  missing_ranks(job, tensor, missing, sizeof missing);
  snprintf(text, sizeof text, "job '%s': after %g s these ranks have not closed tensor '%s': %s", job->name,
           (double)first->timeout_ms / 1000, tensor->spec.name, missing);
  answer_closers(members, job, tensor, NULL, ZPS_ERR_MISSING, text);
  return ZPS_NEVER;
}

uint64_t zps_members_closes_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  uint64_t deadline = ZPS_NEVER;
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    if (!job->tensors[i]->closers) continue;
    const uint64_t tensor_deadline = tensor_tick(members, job, job->tensors[i], now_ns);
    if (tensor_deadline < deadline) deadline = tensor_deadline;
  }
  return deadline;
}
