/* Tensors that are closed, when all ranks want it, with those of zenps's own that belong to them: servers and
 * coordinator forget them, and their numbers are not given again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

void zps_members_tensors_fail(struct zps_members *members, struct zps_member_job *job,
                              const struct zps_member_client *client, zps_err_t code, const char *text) {
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    zps_members_tensor_answer(members, job, job->tensors[i], ZPS_ACT_TENSOR_DONE, client, code, text);
    zps_members_tensor_answer(members, job, job->tensors[i], ZPS_ACT_TENSOR_CLOSED, client, code, text);
  }
}

static bool is_closer(const struct zps_member_tensor *tensor, const struct zps_member_client *client) {
  const struct zps_member_request *closer = tensor->closers;
  while (closer && closer->client != client) closer = closer->next;
  return closer;
}

static bool is_awaited(const struct zps_member_job *job, const struct zps_member_tensor *tensor, uint32_t rank) {
  const struct zps_member_rank *const of = job->ranks[rank];
  return of->state == ZPS_RANK_IN && zps_members_tensor_has(&tensor->spec, rank) && !is_closer(tensor, of->client);
}

/* All ranks that have a part in it and are in the job want it, and one at least. */
static bool is_agreed(const struct zps_member_job *job, const struct zps_member_tensor *tensor) {
  uint32_t n = 0;
  for (const struct zps_member_request *closer = tensor->closers; closer; closer = closer->next) n++;
  if (n == 0 || (tensor->spec.n_ranks == 0 && n < job->n_joined)) return false; /* without a look at each rank */
  for (uint32_t r = 0; r < job->world; r++)
    if (is_awaited(job, tensor, r)) return false;
  return true;
}

/* The tensor, and those of zenps's own that belong to it. Names are their group's. */
static bool belongs(const struct zps_member_tensor *tensor, const struct zps_member_tensor *to) {
  return strcmp(tensor->spec.group, to->spec.group) == 0 &&
         strcmp(zps_tensor_owner_name(tensor->spec.name), to->spec.name) == 0;
}

/* Servers are told ahead of anything that they are told later, such as to open a tensor of the same name. */
static void close_all(struct zps_members *members, struct zps_member_job *job, struct zps_member_tensor *tensor) {
  uint32_t n_left = 0;
  job->version++;
  zps_log_about(.job = job->name, .tensor = tensor->spec.name);
  zps_log_info("job '%s': tensor %u '%s' is closed", job->name, tensor->spec.tensor, tensor->spec.name);
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    struct zps_member_tensor *const other = job->tensors[i];
    if (!belongs(other, tensor)) {
      job->tensors[n_left++] = other;
      continue;
    }
    zps_members_note(members, .type = ZPS_NOTE_TENSOR_GONE, .job = job, .tensor = other);
    zps_members_act_servers(members, job, (struct zps_action){.type = ZPS_ACT_TENSOR_FORGET, .tensor = other});
    zps_members_tensor_answer(members, job, other, ZPS_ACT_TENSOR_DONE, NULL, ZPS_ERR_CLOSED, "the tensor was closed");
    if (other != tensor) zps_member_tensor_free(other);
  }
  job->n_tensors = n_left;
  zps_members_tensor_answer(members, job, tensor, ZPS_ACT_TENSOR_CLOSED, NULL, ZPS_OK, NULL);
  zps_member_tensor_free(tensor);
}

static void close_agreed(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors;) {
    if (!is_agreed(job, job->tensors[i])) {
      i++;
      continue;
    }
    close_all(members, job, job->tensors[i]);
    i = 0; /* others may be gone with it */
  }
}

zps_err_t zps_members_tensor_close(struct zps_member_client *client, uint64_t job_id, uint32_t number,
                                   uint64_t timeout_ms, void *token, uint64_t now_ns, struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  const zps_err_t err = zps_members_running(job, job_id, error);
  if (err) return err;
  struct zps_member_tensor *const tensor = zps_members_tensor_find(job, number);
  if (!tensor || tensor->state != ZPS_TENSOR_OPEN)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' has no open tensor %u", job->name, number);
  if (tensor->spec.name[0] == '@')
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s' is zenps's own: it is closed with the one it belongs to",
                    tensor->spec.name);
  if (!zps_members_tensor_has(&tensor->spec, client->rank))
    return zps_fail(error, ZPS_ERR_INVALID, "tensor '%s' is of group '%s', which rank %u is not in", tensor->spec.name,
                    tensor->spec.group, client->rank);
  if (is_closer(tensor, client))
    return zps_fail(error, ZPS_ERR_BUSY, "rank %u waits for the other ranks to close tensor '%s' already", client->rank,
                    tensor->spec.name);
  struct zps_member_request *const closer = malloc(sizeof *closer);
  if (!closer) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to close tensor '%s'", tensor->spec.name);
  *closer = (struct zps_member_request){.client = client,
                                        .token = token,
                                        .timeout_ms = timeout_ms,
                                        .deadline_ns = now_ns + timeout_ms * ZPS_NS_PER_MS,
                                        .next = tensor->closers};
  tensor->closers = closer;
  return ZPS_OK;
}

/* "2, 5": the ranks that have not come. */
static void missing_ranks(const struct zps_member_job *job, const struct zps_member_tensor *tensor, char *buf,
                          size_t size) {
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world && strlen(buf) + 16 < size; r++)
    if (is_awaited(job, tensor, r)) zps_text_add(buf, size, "%s%u", buf[0] ? ", " : "", r);
}

/* The first rank whose time is up ends it for all that wait: it would be missing, and they would name it. */
static uint64_t expire(struct zps_members *members, const struct zps_member_job *job,
                       struct zps_member_tensor *tensor) {
  const struct zps_member_request *first = tensor->closers;
  char missing[200], text[600];
  for (const struct zps_member_request *closer = first->next; closer; closer = closer->next)
    if (closer->deadline_ns < first->deadline_ns) first = closer;
  if (first->deadline_ns > members->now_ns) return first->deadline_ns;
  missing_ranks(job, tensor, missing, sizeof missing);
  snprintf(text, sizeof text, "job '%s': after %g s these ranks have not closed tensor '%s': %s", job->name,
           (double)first->timeout_ms / 1000, tensor->spec.name, missing);
  zps_members_tensor_answer(members, job, tensor, ZPS_ACT_TENSOR_CLOSED, NULL, ZPS_ERR_MISSING, text);
  return ZPS_NEVER;
}

uint64_t zps_members_closes_settle(struct zps_members *members, struct zps_member_job *job) {
  uint64_t deadline = ZPS_NEVER;
  close_agreed(members, job);
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    if (job->tensors[i]->closers) zps_members_sooner(&deadline, expire(members, job, job->tensors[i]));
  }
  return deadline;
}
