#define ZPS_LOG_COMPONENT "tensor"
#include "worker/api/tensor.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/text.h"
#include "worker/api/nested.h"
#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"
#include "worker/api/view.h"
#include "worker/choice/auto.h"
#include "worker/choice/topology.h"
#include "worker/device/table.h"
#include "worker/peer/peer.h"
#include "worker/plane/sharing.h"
#include "worker/schemes/common.h"
#include "worker/served/served.h"

/* ------------------------------------------------------------ open */

/* This rank's own ends of its links to all others. */
static zps_err_t make_links(struct zenps_job *job, struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  if (!job->peers.ranks)
    err = zps_membership_peers(&job->membership, (uint32_t)job->options.world, job->options.round_timeout_ms,
                               &job->peers, error);
  return err == ZPS_OK ? zps_plane_link(&job->plane, &job->peers, error) : err;
}

/* All ranks, to each other, before the first round of a scheme between ranks: no rank sends before all can receive.
 */
static zps_err_t link_ranks(struct zenps_job *job, struct zps_error *error) {
  const uint64_t timeout_ms = job->options.round_timeout_ms;
  if (job->linked) return ZPS_OK;
  zps_err_t err = make_links(job, error);
  if (err != ZPS_OK) return err;
  struct zps_sharing sharing;
  zps_sharing_begin(&sharing, &job->options, &job->join, &job->peers);
  err = zps_membership_linked(&job->membership, timeout_ms, error);
  if (err == ZPS_OK) err = zps_sharing_meet(&sharing, &job->plane, error);
  zps_sharing_fini(&sharing);
  job->linked = err == ZPS_OK;
  return err;
}

/* The same among the ranks of a group, whatever others do. They share no memory: that takes all ranks of their host. */
static zps_err_t link_group(struct zenps_job *job, struct zenps_group *group, struct zps_error *error) {
  char name[ZPS_NAME_MAX + 1];
  if (group->is_linked) return ZPS_OK;
  snprintf(name, sizeof name, "@links/%s", group->name);
  zps_err_t err = make_links(job, error);
  if (err == ZPS_OK)
    err = zps_membership_group_open(&job->membership, name, group->ranks, group->n_ranks, job->options.round_timeout_ms,
                                    error);
  group->is_linked = err == ZPS_OK;
  return err;
}

/* Opens the tensor of the hosts' masters: over servers, pushed by the masters alone. */
static zps_err_t between_hosts_open(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                    const struct zps_peer_tensor *peer, struct zenps_tensor **inner_p,
                                    struct zps_error *error) {
  char name[128]; /* a tensor's longest name */
  struct zps_tensor_ask inner = *asked;
  if ((size_t)snprintf(name, sizeof name, "@hosts/%s", asked->spec.name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: its name is too long for scheme %s; %zu bytes at most can be",
                    asked->spec.name, asked->scheme.name, sizeof name - strlen("@hosts/") - 1);
  *inner_p = zps_worker_tensor_find(job, asked->group, name);
  if (*inner_p) return ZPS_OK;
  zps_scheme_ask_between_hosts(&asked->scheme, &inner.scheme);
  snprintf(inner.spec.name, sizeof inner.spec.name, "%s", name);
  inner.spec.scheme = inner.scheme.spec;
  inner.spec.ranks = peer->masters;
  inner.spec.n_ranks = peer->n_masters;
  inner.spec.dtype = zps_dtype_sum(inner.spec.dtype);           /* a host's sums are not rounded on the way */
  if (inner.spec.op == ZPS_OP_MEAN) inner.spec.op = ZPS_OP_SUM; /* the mean is divided once, by the number of ranks */
  const zps_err_t err = zps_worker_tensor_create(job, &inner, inner_p, error);
  if (err != ZPS_OK) return err;
  if (inner.spec.op == ZPS_OP_MAX || inner.spec.op == ZPS_OP_MIN) (*inner_p)->core.keeps_zero_rows = true;
  zps_worker_tensor_add(job, *inner_p);
  return err;
}

static zps_err_t inner_create(struct zenps_tensor *tensor, const struct zps_tensor_ask *asked,
                              struct zps_error *error) {
  struct zenps_job *job = tensor->job;
  struct zps_peer_tensor *peer = tensor->core.peer;
  struct zenps_tensor *inner = NULL;
  if (peer->n_masters < 2 || zps_peer_master(&peer->plan, peer->plan.me) != peer->plan.me) return ZPS_OK;
  zps_err_t err = between_hosts_open(job, asked, peer, &inner, error);
  if (err != ZPS_OK) return err;
  err = zps_nested_create(inner, &tensor->inner);
  if (err != ZPS_OK) return zps_fail(error, err, "no memory for tensor %s", asked->spec.name);
  peer->inner = &tensor->inner->service;
  return ZPS_OK;
}

/* Devices add floats as they are, and leave no row out that a host's sum has. */
static bool merges_on_device(const struct zps_round_tensor *core) {
  const bool adds = core->op == ZPS_OP_SUM || core->op == ZPS_OP_MEAN;
  return core->peer->scheme->nests && adds && !zps_dtype_is_half(core->dtype) && !core->keeps_zero_rows &&
         core->peer->plan.values == 0;
}

/* Notes which ranks of this host may offer each other what is on their devices. In a group none does: its ranks share
 * nothing as long as not all ranks of the job are linked, which they may hear of at different times. */
static zps_err_t find_near(struct zenps_tensor *tensor, struct zps_error *error) {
  const struct zenps_job *job = tensor->job;
  struct zps_peer_tensor *peer = tensor->core.peer;
  if (tensor->group || job->options.device < 0 || !merges_on_device(&tensor->core)) return ZPS_OK;
  peer->near = calloc(peer->plan.n, sizeof *peer->near);
  if (!peer->near) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", tensor->core.name);
  for (uint32_t r = 0; r < peer->plan.n; r++) peer->near[r] = zps_plane_shares_device(&job->plane, r);
  peer->plan.near = peer->near;
  peer->plan.offer_len = ZPS_OFFER_LEN;
  return ZPS_OK;
}

/* Rounds between ranks, by a scheme of theirs. */
static zps_err_t peer_create(struct zenps_tensor *tensor, const struct zps_tensor_ask *asked, struct zps_error *error) {
  struct zenps_job *job = tensor->job;
  struct zps_round_tensor *core = &tensor->core;
  zps_err_t err = asked->group ? link_group(job, asked->group, error) : link_ranks(job, error);
  if (err == ZPS_OK)
    err = zps_peer_tensor_create(&asked->scheme, &job->peers, (uint32_t)job->options.rank, asked->group, &core->peer,
                                 error);
  if (err != ZPS_OK) return err;
  core->ops = &zps_peer_ops;
  core->scheme = core->peer->scheme->name;
  core->works_in_host = true;
  core->sends_zeros = core->peer->scheme->sends_zeros;
  err = find_near(tensor, error);
  if (err != ZPS_OK) return err;
  return asked->scheme.between ? inner_create(tensor, asked, error) : ZPS_OK;
}

static void served_create(struct zenps_tensor *tensor, const struct zps_served_kind *served) {
  struct zps_round_tensor *core = &tensor->core;
  core->served = served;
  core->ops = &zps_served_ops;
  core->scheme = served->name;
  core->works_in_host = served->all_rows || served->blocks || core->keeps_zero_rows;
}

static struct zps_tensor_shape shape_of(const struct zps_tensor_spec *spec) {
  return (struct zps_tensor_shape){spec->rows, spec->width, spec->dtype};
}

zps_err_t zps_worker_tensor_register(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                     struct zps_registering *registering, struct zps_error *error) {
  const struct zps_tensor_shape shape = shape_of(&asked->spec);
  const struct zps_served_kind *served = asked->scheme.served;
  struct zps_tensor_spec *const wire = &registering->wire;
  *wire = asked->spec;
  if (served) wire->codec = zps_served_kind_codec(served, wire->codec);
  if (served && served->blocks) {
    wire->rows = zps_blocks_count(&shape);
    wire->width = ZPS_BLOCK_VALUES;
  }
  return zps_membership_register_start(&job->membership, wire, job->options.round_timeout_ms, &registering->call,
                                       error);
}

void zps_worker_tensor_unregistered(struct zenps_job *job, struct zps_registering *registering) {
  struct zps_error error;
  if (zps_membership_register_wait(&job->membership, registering->call, &registering->wire, job->join.view.n_places,
                                   &error) == ZPS_OK)
    free((void *)registering->wire.owners);
}

static zps_err_t create_registered(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                   struct zps_registering *registering, struct zenps_tensor **tensor_p,
                                   struct zps_error *error) {
  const struct zps_tensor_spec *ask = &asked->spec;
  const struct zps_tensor_shape shape = shape_of(ask);
  const struct zps_served_kind *served = asked->scheme.served;
  zps_err_t err = zps_membership_register_wait(&job->membership, registering->call, &registering->wire,
                                               job->join.view.n_places, error);
  if (err != ZPS_OK) return err;
  const struct zps_tensor_spec wire = registering->wire;
  struct zenps_tensor *tensor = calloc(1, sizeof *tensor);
  struct zps_row_arrays_pool *arrays = NULL;
  if (!tensor || zps_row_arrays_pool_create(&arrays) != ZPS_OK) {
    free(tensor);
    free((void *)wire.owners);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", ask->name);
  }
  tensor->job = job;
  tensor->group = asked->group;
  tensor->core = (struct zps_round_tensor){.job = job->options.job,
                                           .id = wire.tensor,
                                           .world = asked->group ? asked->group->n_ranks : (uint32_t)job->options.world,
                                           .rounds = &job->rounds,
                                           .shape = shape,
                                           .width = wire.width,
                                           .dtype = ask->dtype,
                                           .op = ask->op,
                                           .partitioner = ask->partitioner,
                                           .hashing = ask->hashing,
                                           .codec = wire.codec,
                                           .value_codec = zps_values_of(ask->value_codec, ask->dtype),
                                           .keeps_zero_rows = ask->keep_zero_rows,
                                           .quorum = ask->quorum,
                                           .arrays = arrays};
  snprintf(tensor->core.name, sizeof tensor->core.name, "%.127s", ask->name);
  tensor->asked = *ask;
  tensor->asked.ranks = NULL; /* they may not live as long; only tensors of the library's own have some */
  tensor->asked.n_ranks = 0;
  if (served && zps_partitioner_hashes(ask->partitioner))
    err = zps_murmur_create(wire.rows, wire.n_parts, job->join.seed, job->plane.pool, &tensor->core.murmur,
                            &tensor->core.part, error);
  else
    err = zps_partition_init(&tensor->core.part, wire.rows, wire.n_parts, wire.block_bits, job->join.seed, error);
  if (err == ZPS_OK && !zps_worker_owners_set(tensor, wire.owners))
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", ask->name);
  free((void *)wire.owners);
  if (err == ZPS_OK && served) served_create(tensor, served);
  if (err == ZPS_OK && asked->scheme.scheme) err = peer_create(tensor, asked, error);
  if (err != ZPS_OK) {
    zps_worker_tensor_destroy(tensor);
    return err;
  }
  *tensor_p = tensor;
  return ZPS_OK;
}

zps_err_t zps_worker_tensor_create(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                   struct zenps_tensor **tensor_p, struct zps_error *error) {
  struct zps_registering registering;
  const zps_err_t err = zps_worker_tensor_register(job, asked, &registering, error);
  return err == ZPS_OK ? create_registered(job, asked, &registering, tensor_p, error) : err;
}

void zps_worker_tensor_add(struct zenps_job *job, struct zenps_tensor *tensor) {
  pthread_mutex_lock(&job->lock);
  if (zps_worker_owners_remap(tensor) != ZPS_OK)
    zps_log_error("no memory for the owners of tensor %s: its rounds fail", tensor->core.name);
  tensor->next = job->tensors;
  job->tensors = tensor;
  pthread_mutex_unlock(&job->lock);
}

struct zenps_tensor *zps_worker_tensor_find(struct zenps_job *job, const struct zenps_group *group, const char *name) {
  struct zenps_tensor *tensor = job->tensors;
  while (tensor && (tensor->is_closed || tensor->group != group || strcmp(tensor->core.name, name) != 0))
    tensor = tensor->next;
  return tensor;
}

zps_err_t zps_worker_tensor_open_registered(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                            const zenps_tensor_options_t *given, struct zps_registering *registering,
                                            struct zenps_tensor **tensor_p, struct zps_error *error) {
  struct zenps_tensor *tensor;
  zps_err_t err = create_registered(job, asked, registering, &tensor, error);
  if (err == ZPS_OK && asked->scheme.choices) {
    err = zps_worker_tensor_automatic(job, tensor, asked, given, error);
    if (err != ZPS_OK) zps_worker_tensor_destroy(tensor);
  }
  if (err != ZPS_OK) return err;
  zps_worker_tensor_add(job, tensor);
  *tensor_p = tensor;
  return ZPS_OK;
}

/* Under the job's `open`: only those who hold it change the list. */
static zps_err_t open_one(struct zenps_job *job, const struct zps_tensor_ask *asked,
                          const zenps_tensor_options_t *given, struct zenps_tensor **tensor_p,
                          struct zps_error *error) {
  struct zenps_tensor *const tensor = zps_worker_tensor_find(job, asked->group, asked->spec.name);
  struct zps_registering registering;
  zps_err_t err = ZPS_OK;
  if (tensor) {
    err = zps_tensor_ask_compare(tensor, asked, error);
    if (err == ZPS_OK) *tensor_p = tensor;
    return err;
  }
  err = zps_worker_tensor_register(job, asked, &registering, error);
  return err == ZPS_OK ? zps_worker_tensor_open_registered(job, asked, given, &registering, tensor_p, error) : err;
}

zenps_status_t zps_worker_tensor_open(struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                                      enum zps_dtype dtype, const zenps_tensor_options_t *options,
                                      struct zenps_tensor **tensor_p) {
  struct zps_tensor_ask asked;
  struct zps_error error;
  if (zps_tensor_ask_make(job, name, rows, width, dtype, options, &asked, &error) != ZPS_OK)
    return zps_first_call(job, zps_worker_raise(&error));
  pthread_mutex_lock(&job->open);
  pthread_mutex_lock(&job->lock);
  const zenps_status_t status = zps_worker_job_check(job);
  pthread_mutex_unlock(&job->lock);
  zps_err_t err = ZPS_OK;
  if (status == ZENPS_OK) err = open_one(job, &asked, options, tensor_p, &error);
  pthread_mutex_unlock(&job->open);
  return zps_first_call(job, status != ZENPS_OK || err == ZPS_OK ? status : zps_worker_raise(&error));
}

zps_err_t zps_tensor_ask_check(const char *name, zenps_dtype_t dtype, struct zps_error *error) {
  const zps_err_t err = zps_text_check_name("tensor", name, sizeof((zenps_error_t){0}.tensor) - 1, error);
  if (err != ZPS_OK) return err;
  if (name[0] == '@')
    return zps_fail(error, ZPS_ERR_INVALID, "tensor name \"%s\" starts with '@', as the library's own do", name);
  if (dtype != ZENPS_F32 && dtype != ZENPS_F64 && dtype != ZENPS_BF16 && dtype != ZENPS_F16) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: dtype %d is none of " ZPS_DTYPES_TEXT, name, (int)dtype);
  }
  return ZPS_OK;
}

zenps_status_t zenps_tensor_open(zenps_job_t *job, const char *name, uint64_t rows, uint32_t width, zenps_dtype_t dtype,
                                 const zenps_tensor_options_t *options, zenps_tensor_t **tensor) {
  struct zps_error error;
  if (!job || !name || !tensor)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_tensor_open: job, name or tensor is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  if (zps_tensor_ask_check(name, dtype, &error) != ZPS_OK) return zps_worker_raise(&error);
  return zps_worker_tensor_open(job, name, rows, width, (enum zps_dtype)dtype, options, tensor);
}

/* Of the tensor itself, or of that of the hosts' masters. */
static const char *partitioner_of(const struct zenps_tensor *tensor) {
  const struct zps_served_kind *served = tensor->core.served;
  if (!served && tensor->asked.scheme.between[0]) served = zps_served_kind_find(tensor->asked.scheme.between);
  return served && !served->ranges ? zps_partitioner_name(tensor->core.partitioner) : NULL;
}

zenps_status_t zenps_tensor_info(const zenps_tensor_t *tensor, zenps_tensor_info_t *info) {
  if (!tensor || !info || info->struct_size < sizeof(size_t)) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_tensor_info: tensor or info is NULL, or its struct_size is not set");
  }
  struct zps_error error;
  if (zps_worker_tensor_check(tensor, &error) != ZPS_OK) return zps_worker_raise(&error);
  const size_t size = info->struct_size;
  const zenps_tensor_info_t known = {.struct_size = size,
                                     .rows = tensor->core.shape.rows,
                                     .seed = tensor->core.part.seed,
                                     .id = tensor->core.id,
                                     .width = tensor->core.shape.width,
                                     .partitions = tensor->core.part.n_parts,
                                     .block_bits = tensor->core.part.block_bits,
                                     .dtype = (zenps_dtype_t)tensor->core.dtype,
                                     .op = (zenps_op_t)tensor->core.op,
                                     .codec = (zenps_codec_t)tensor->asked.codec,
                                     .values = (zenps_values_t)tensor->asked.value_codec,
                                     .partitioner = partitioner_of(tensor),
                                     .scheme = tensor->automatic   ? "auto"
                                               : tensor->core.peer ? tensor->core.peer->name
                                                                   : tensor->core.served->name};
  memset(info, 0, size);
  memcpy(info, &known, size < sizeof known ? size : sizeof known);
  return ZENPS_OK;
}

uint32_t zenps_tensor_partitions(const zenps_tensor_t *tensor) {
  return tensor && !tensor->is_closed ? tensor->core.part.n_parts : 0;
}

int zenps_tensor_owner(const zenps_tensor_t *tensor, uint32_t partition) {
  return partition < zenps_tensor_partitions(tensor) ? (int)tensor->core.owners[partition] : -1;
}

zps_err_t zps_worker_tensor_check(const struct zenps_tensor *tensor, struct zps_error *error) {
  if (!tensor->is_closed) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_CLOSED, "tensor %s was closed: open it anew", tensor->core.name);
}

void zps_worker_tensor_fini(struct zenps_tensor *tensor) {
  zps_replay_drop(tensor->core.rounds, &tensor->core);
  zps_worker_tensor_rounds_destroy(tensor);
  zps_row_arrays_pool_close(tensor->core.arrays);
  zps_peer_tensor_destroy(tensor->core.peer);
  free(tensor->inner);
  if (tensor->is_automatic) zps_automatic_destroy(tensor->automatic);
  free(tensor->agree);
  zps_worker_owners_free(tensor);
  if (tensor->core.table_on_device) zps_device_table_release(tensor->job->device->device, tensor->core.table_on_device);
  zps_murmur_destroy(tensor->core.murmur);
}

void zps_worker_tensor_destroy(struct zenps_tensor *tensor) {
  if (!tensor) return;
  zps_worker_tensor_fini(tensor);
  free(tensor);
}
