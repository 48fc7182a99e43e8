/* Jobs, their ranks and their tensors. */
#include "server/shard/plane.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/clock.h"
#include "common/base/log.h"

enum { LINGER_MS = 1000 };

struct zps_job *zps_job_find(struct zps_job *jobs, uint64_t id) {
  struct zps_job *job = jobs;
  while (job && job->id != id) job = job->next;
  return job;
}

/* ---- members ---- */

static zps_err_t member_connect(struct zps_member *member, const struct zps_member_spec *spec,
                                struct zps_error *error) {
  struct zps_job *job = member->job;
  struct zps_shard *shard = job->shard;
  zps_err_t code = zps_net_peer_add(shard->net, spec->addr, spec->addr_len, member, &member->peer, error);
  if (code != ZPS_OK) return code;
  code = zps_tags_get(&shard->tags, member, &member->tag);
  member->has_tag = code == ZPS_OK;
  if (code == ZPS_OK) code = zps_bulk_peer_add(shard->bulk, member->peer, &member->bulk);
  if (code == ZPS_OK)
    code = zps_link_create(shard->net, member->peer, job->id, job->epoch, job->server | ZPS_WIRE_SRC_SERVER,
                           member->tag, &member->link);
  if (code != ZPS_OK)
    return zps_fail(error, code, "job %s: cannot open the link to rank %u: %s", job->name, member->rank,
                    zps_err_str(code));
  zps_link_measure(member->link, member->bulk, false);
  return ZPS_OK;
}

static void member_disconnect(struct zps_member *member) {
  zps_link_destroy(member->link);
  zps_net_peer_evict(member->peer);
  zps_bulk_peer_remove(member->bulk);
  member->link = NULL;
  member->peer = NULL;
  member->bulk = NULL;
}

void zps_member_fail(struct zps_member *member, zps_err_t code, const char *text) {
  if (!member->link || member->is_failing) return;
  member->is_failing = member->job->shard->any_failing = true;
  member->gone_code = code;
  member->gone_text = strdup(text);
}

void zps_member_send(struct zps_member *member, struct zps_frame *frame) {
  if (!member->link || member->is_failing) return;
  const zps_err_t code = zps_link_send(member->link, frame);
  if (code == ZPS_OK) return;
  char text[120];
  if (code == ZPS_ERR_AGAIN)
    snprintf(text, sizeof text, "it takes no more frames: %u of them wait", ZPS_LINK_QUEUE_MAX);
  else
    snprintf(text, sizeof text, "cannot send it a %s frame: %s", zps_frame_type_name(frame->header.type),
             zps_err_str(code));
  zps_member_fail(member, ZPS_ERR_PEER_LOST, text);
}

struct zps_shard_machine_event zps_member_gone_event(const struct zps_member *member) {
  const struct zps_job *job = member->job;
  if (job->lost != ZPS_SHARD_NO_RANK)
    return (struct zps_shard_machine_event){.type = ZPS_SHARD_GONE,
                                            .rank = member->rank,
                                            .code = ZPS_ERR_PEER_LOST,
                                            .text = job->lost_text ? job->lost_text : zps_err_str(ZPS_ERR_PEER_LOST),
                                            .blamed = &job->lost,
                                            .n_blamed = 1};
  return (struct zps_shard_machine_event){
      .type = ZPS_SHARD_GONE,
      .rank = member->rank,
      .code = member->gone_code,
      .text = member->gone_text ? member->gone_text : zps_err_str(member->gone_code)};
}

void zps_job_lost(struct zps_job *job, uint32_t rank, const char *text) {
  if (job->lost != ZPS_SHARD_NO_RANK) return;
  job->lost = rank;
  job->lost_text = strdup(text);
}

void zps_member_gone(struct zps_member *member, zps_err_t code, const char *text) {
  struct zps_job *job = member->job;
  if (!member->link) return;
  if (!member->is_failing) {
    member->gone_code = code;
    member->gone_text = strdup(text);
  }
  member->is_failing = false;
  zps_log_info("job %s: rank %u is gone: %s", job->name, member->rank, text);
  const struct zps_shard_machine_event gone = zps_member_gone_event(member);
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    for (struct zps_shard_round *round = tensor->rounds, *next; round; round = next) {
      next = round->next;
      zps_shard_round_step(round, &gone);
    }
  }
  member_disconnect(member);
  job->n_gone++;
}

/* ---- jobs ---- */

zps_err_t zps_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) {
  if (spec->world == 0 || spec->world > ZPS_WORLD_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "job %s: a world of %u ranks; it must be 1 to %u", spec->name, spec->world,
                    ZPS_WORLD_MAX);
  if (zps_job_find(shard->jobs, spec->job_id))
    return zps_fail(error, ZPS_ERR_BUSY, "job %s (0x%016" PRIx64 ") is already open here", spec->name, spec->job_id);
  struct zps_job *job = calloc(1, sizeof *job + spec->world * sizeof job->members[0]);
  if (!job) return zps_fail(error, ZPS_ERR_NOMEM, "job %s: out of memory", spec->name);
  job->shard = shard;
  job->id = spec->job_id;
  job->seed = spec->seed;
  job->epoch = spec->epoch;
  job->server = spec->server;
  job->world = spec->world;
  job->lost = ZPS_SHARD_NO_RANK;
  memcpy(job->name, spec->name, sizeof job->name);
  for (uint32_t rank = 0; rank < job->world; rank++) {
    struct zps_member *member = &job->members[rank];
    member->job = job;
    member->rank = rank;
    const zps_err_t code = member_connect(member, &spec->members[rank], error);
    if (code != ZPS_OK) {
      zps_job_free(job);
      return code;
    }
  }
  job->next = shard->jobs;
  shard->jobs = job;
  zps_log_info("job %s: open with %u ranks", job->name, job->world);
  return ZPS_OK;
}

/* Its rounds are over and buried. */
static void tensor_free(struct zps_tensor *tensor) {
  if (!tensor) return;
  for (struct zps_shard_round *round; (round = tensor->free_rounds) != NULL;) {
    tensor->free_rounds = round->next;
    zps_shard_round_free(round);
  }
  zps_reduce_tasks_free(tensor);
  for (unsigned i = 0; i < ZPS_TOMBSTONES; i++) free(tensor->tombstones[i].abort);
  zps_sums_fini(tensor);
  free(tensor->positions);
  free(tensor->partitions);
  free(tensor->sizes);
  free(tensor->idle);
  free(tensor);
}

static void free_tensors(struct zps_job *job) {
  for (struct zps_tensor *tensor; (tensor = job->tensors) != NULL;) {
    job->tensors = tensor->next;
    tensor_free(tensor);
  }
}

void zps_job_free(struct zps_job *job) {
  if (!job) return;
  free_tensors(job);
  for (uint32_t rank = 0; rank < job->world; rank++) {
    member_disconnect(&job->members[rank]);
    if (job->members[rank].has_tag) zps_tags_put(&job->shard->tags, job->members[rank].tag);
    free(job->members[rank].gone_text);
  }
  free(job->lost_text);
  free(job);
}

void zps_job_close(struct zps_job *job, uint64_t now_ns, const char *reason) {
  struct zps_shard *shard = job->shard;
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    while (tensor->rounds)
      zps_shard_round_fail(tensor->rounds, ZPS_SHARD_NO_RANK, ZPS_ERR_CLOSED, "the job was closed: %s", reason);
  zps_shard_round_bury(shard);
  free_tensors(job);
  zps_log_info("job %s: closed: %s", job->name, reason);
  struct zps_job **link = &shard->jobs;
  while (*link != job) link = &(*link)->next;
  *link = job->next;
  job->is_closed = true;
  job->linger_until_ns = now_ns + LINGER_MS * ZPS_NS_PER_MS;
  job->next = shard->lingering;
  shard->lingering = job;
}

/* ---- tensors ---- */

struct zps_tensor *zps_tensor_find(const struct zps_job *job, uint32_t id) {
  struct zps_tensor *tensor = job->tensors;
  while (tensor && tensor->id != id) tensor = tensor->next;
  return tensor;
}

static zps_err_t check_spec(const struct zps_job *job, const struct zps_tensor_spec *spec, struct zps_error *error) {
  if (zps_tensor_find(job, spec->tensor))
    return zps_fail(error, ZPS_ERR_BUSY, "job %s: tensor %u (%s) is already open here", job->name, spec->tensor,
                    spec->name);
  if (zps_dtype_size(spec->dtype) == 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: %d is no dtype", job->name, spec->name,
                    (int)spec->dtype);
  if (spec->op < ZPS_OP_SUM || spec->op > ZPS_OP_MIN)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: %d is no operation", job->name, spec->name,
                    (int)spec->op);
  if (zps_codec_result_set(spec->codec) == 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: %d is no choice of codecs", job->name, spec->name,
                    (int)spec->codec);
  if (!zps_values_suit(spec->value_codec, spec->dtype))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: values of dtype %s do not travel as %d (%s)",
                    job->name, spec->name, zps_dtype_name(spec->dtype), (int)spec->value_codec,
                    zps_values_name(spec->value_codec));
  if (spec->op == ZPS_OP_MEAN && spec->dtype == ZPS_DTYPE_U8)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: bytes have no mean; use sum", job->name,
                    spec->name);
  if (spec->width == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: a width of 0; it must be 1 or more", job->name,
                    spec->name);
  return ZPS_OK;
}

/* Which partitions are here, and how large they are. */
static zps_err_t place(struct zps_tensor *tensor, const struct zps_tensor_spec *spec, struct zps_error *error) {
  for (uint32_t p = 0; p < spec->n_parts; p++) {
    tensor->positions[p] = UINT32_MAX;
    if (spec->owners[p] != tensor->job->server) continue;
    const uint32_t m = zps_partition_size(&tensor->partition, p);
    if ((uint64_t)m > (1ull << 56) / zps_dtype_size(spec->dtype) / spec->width)
      return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: a partition of %u rows of width %u is too large",
                      tensor->job->name, spec->name, m, spec->width);
    tensor->positions[p] = tensor->parts_here;
    tensor->partitions[tensor->parts_here] = p;
    tensor->sizes[tensor->parts_here++] = m;
  }
  if ((uint64_t)tensor->parts_here * tensor->job->world > ZPS_SLOTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "job %s, tensor %s: %u partitions on this server for %u ranks; their product may be up to %u",
                    tensor->job->name, spec->name, tensor->parts_here, tensor->job->world, ZPS_SLOTS_MAX);
  return ZPS_OK;
}

/* Who has no part in it. */
static zps_err_t set_ranks(struct zps_tensor *tensor, const struct zps_tensor_spec *spec, struct zps_error *error) {
  const uint32_t world = tensor->job->world;
  if (spec->n_ranks == 0) return ZPS_OK;
  tensor->idle = malloc(world);
  if (!tensor->idle)
    return zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", tensor->job->name, spec->name);
  memset(tensor->idle, 1, world);
  for (uint32_t i = 0; i < spec->n_ranks; i++) {
    if (spec->ranks[i] >= world)
      return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: rank %u has a part in it, of a world of %u",
                      tensor->job->name, spec->name, spec->ranks[i], world);
    tensor->idle[spec->ranks[i]] = 0;
  }
  return ZPS_OK;
}

zps_err_t zps_tensor_open(struct zps_job *job, const struct zps_tensor_spec *spec, struct zps_error *error) {
  struct zps_partition partition;
  zps_err_t code = check_spec(job, spec, error);
  if (code == ZPS_OK)
    code = zps_partition_init(&partition, spec->rows, spec->n_parts, spec->block_bits, job->seed, error);
  if (code != ZPS_OK) return code;
  struct zps_tensor *tensor = calloc(1, sizeof *tensor);
  if (!tensor) return zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", job->name, spec->name);
  tensor->job = job;
  tensor->id = spec->tensor;
  tensor->width = spec->width;
  tensor->dtype = spec->dtype;
  tensor->op = spec->op;
  tensor->codecs = zps_codec_result_set(spec->codec);
  tensor->value_codec = spec->value_codec;
  tensor->partition = partition;
  memcpy(tensor->name, spec->name, sizeof tensor->name);
  tensor->positions = calloc(spec->n_parts, sizeof tensor->positions[0]);
  tensor->partitions = calloc(spec->n_parts, sizeof tensor->partitions[0]);
  tensor->sizes = calloc(spec->n_parts, sizeof tensor->sizes[0]);
  if (!tensor->positions || !tensor->partitions || !tensor->sizes)
    code = zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", job->name, spec->name);
  if (code == ZPS_OK) code = place(tensor, spec, error);
  if (code == ZPS_OK) code = set_ranks(tensor, spec, error);
  if (code == ZPS_OK && zps_sums_init(tensor) != ZPS_OK)
    code = zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", job->name, spec->name);
  if (code != ZPS_OK) {
    tensor_free(tensor);
    return code;
  }
  tensor->next = job->tensors;
  job->tensors = tensor;
  zps_log_info("job %s, tensor %s: open with %" PRIu64 " x %u %s, %u of %u partitions here", job->name, tensor->name,
               spec->rows, spec->width, zps_dtype_name(spec->dtype), tensor->parts_here, spec->n_parts);
  return ZPS_OK;
}

void zps_tensor_bury(struct zps_tensor *tensor, uint64_t step, const struct zps_frame_abort *abort) {
  struct zps_tombstone *tombstone = &tensor->tombstones[tensor->next_tombstone];
  tensor->next_tombstone = (tensor->next_tombstone + 1) % ZPS_TOMBSTONES;
  free(tombstone->abort);
  *tombstone = (struct zps_tombstone){.step = step, .is_used = true, .is_completed = !abort};
  if (!abort) return;
  tombstone->abort = malloc(sizeof *abort);
  if (tombstone->abort) *tombstone->abort = *abort;
}

const struct zps_tombstone *zps_tensor_tombstone(const struct zps_tensor *tensor, uint64_t step) {
  for (unsigned i = 0; i < ZPS_TOMBSTONES; i++)
    if (tensor->tombstones[i].is_used && tensor->tombstones[i].step == step) return &tensor->tombstones[i];
  return NULL;
}
