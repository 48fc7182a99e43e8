#include "tests/unit/server/shard/shard_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/codec/join.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/views.h"
#include "tests/unit/server/shard/shard_sums.h"

struct zps_shard *cluster_shard(const char *provider, const char *fault, uint64_t memory_limit_bytes) {
  return cluster_shard_with(provider, fault, memory_limit_bytes, (struct zps_quota){.rounds = 0});
}

struct zps_shard *cluster_shard_with(const char *provider, const char *fault, uint64_t memory_limit_bytes,
                                     struct zps_quota quota) {
  const struct zps_shard_config config = {
      .net = {.provider = provider, .fault = fault, .n_recv = 4, .connect_timeout_ms = PATIENCE_NEVER_MS},
      .memory_limit_bytes = memory_limit_bytes,
      .reduce_threads = 2,
      .quota = quota};
  struct zps_shard *shard = NULL;
  struct zps_error error = {0};
  if (zps_shard_create(&config, &shard, &error) != ZPS_OK) fail_msg("%s", error.text);
  return shard;
}

void cluster_open(struct cluster *cluster, struct zps_shard *shard, const char *provider, const char *fault,
                  uint64_t job_id, uint32_t world) {
  cluster_open_since(cluster, shard, provider, fault, job_id, world, 0);
}

enum { PLACES = 3 };

/* Of three places, of which the job began with servers in the first `n_began`. */
static void open_job(struct cluster *cluster, struct zps_shard *shard, const char *provider, const char *fault,
                     uint64_t job_id, uint32_t world, uint32_t since, uint32_t n_began) {
  struct zps_member_spec members[CLUSTER_RANKS] = {0};
  struct zps_place_image places[PLACES];
  struct zps_error error = {0};
  *cluster = (struct cluster){.shard = shard, .job_id = job_id, .seed = 99 + job_id, .world = world};
  for (uint32_t rank = 0; rank < world; rank++) {
    cluster->ranks[rank] = rig_rank_open(provider, fault);
    const struct zps_net_info *info = rig_rank_info(cluster->ranks[rank]);
    members[rank].rank = rank;
    members[rank].addr_len = info->addr_len;
    memcpy(members[rank].addr, info->addr, info->addr_len);
    rig_rank_connect(cluster->ranks[rank], zps_shard_net_info(shard), job_id, rank, since);
  }
  const struct zps_job_spec spec = {.job_id = job_id,
                                    .seed = cluster->seed,
                                    .checksums = true,
                                    .name = "job",
                                    .view = view_of(places, 1, n_began,
                                                    since          ? "jii"
                                                    : n_began == 1 ? "iff"
                                                                   : "iii"),
                                    .world = world,
                                    .members = members};
  places[0].since = since;
  if (zps_shard_job_open(shard, &spec, &error) != ZPS_OK) fail_msg("%s", error.text);
}

void cluster_open_since(struct cluster *cluster, struct zps_shard *shard, const char *provider, const char *fault,
                        uint64_t job_id, uint32_t world, uint32_t since) {
  open_job(cluster, shard, provider, fault, job_id, world, since, 3);
}

void cluster_open_alone(struct cluster *cluster, struct zps_shard *shard, uint64_t job_id, uint32_t world) {
  open_job(cluster, shard, "loop", NULL, job_id, world, 0, 1);
}

struct cluster_tensor *cluster_tensor(struct cluster *cluster, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                                      enum zps_op op, uint32_t n_parts, double density) {
  struct cluster_tensor *tensor = &cluster->tensors[cluster->n_tensors];
  struct zps_error error = {0};
  assert_true(cluster->n_tensors < CLUSTER_TENSORS && n_parts <= CLUSTER_PARTS);
  tensor->density = density;
  const bool is_raw = dtype == ZPS_DTYPE_U8 || cluster->value_codec == 0;
  for (uint32_t p = 0; p < n_parts; p++) tensor->owners[p] = cluster->quorum == 0 && p % 3 == 2;
  tensor->spec = (struct zps_tensor_spec){.job_id = cluster->job_id,
                                          .tensor = 7 + cluster->n_tensors++,
                                          .rows = rows,
                                          .width = width,
                                          .dtype = dtype,
                                          .op = op,
                                          .codec = dtype == ZPS_DTYPE_F64 ? ZPS_CODEC_PAPER : ZPS_CODEC_AUTO,
                                          .value_codec = is_raw ? ZPS_VALUES_RAW : cluster->value_codec,
                                          .n_parts = n_parts,
                                          .block_bits = 2,
                                          .staleness = cluster->staleness,
                                          .quorum = cluster->quorum,
                                          .grace_ms = cluster->grace_ms,
                                          .owners = tensor->owners};
  snprintf(tensor->spec.name, sizeof tensor->spec.name, "tensor%u", tensor->spec.tensor);
  tensor->spec.ranks = tensor->ranks;
  for (uint32_t rank = 0; cluster->idle != 0 && rank < cluster->world; rank++)
    if (!(cluster->idle >> rank & 1)) tensor->ranks[tensor->spec.n_ranks++] = rank;
  assert_int_equal(zps_partition_init(&tensor->part, rows, n_parts, 2, cluster->seed, &error), ZPS_OK);
  if (zps_shard_tensor_open(cluster->shard, &tensor->spec, &error) != ZPS_OK) fail_msg("%s", error.text);
  for (uint32_t p = 0; p < n_parts; p++)
    tensor->sizes[p] = cluster_owned(tensor, p) ? zps_partition_size(&tensor->part, p) : UINT32_MAX;
  tensor->layout = (struct rig_layout){.tensor = tensor->spec.tensor,
                                       .n_parts = n_parts,
                                       .width = width,
                                       .dtype = zps_dtype_sum(dtype),
                                       .value_codec = zps_values_of(tensor->spec.value_codec, dtype),
                                       .sizes = tensor->sizes};
  for (uint32_t rank = 0; rank < cluster->world; rank++) rig_rank_layout(cluster->ranks[rank], &tensor->layout);
  return tensor;
}

void cluster_close(struct cluster *cluster) {
  const zps_err_t code = zps_shard_job_close(cluster->shard, cluster->job_id, "the test is over");
  assert_true(code == ZPS_OK || code == ZPS_ERR_UNKNOWN);
  for (uint32_t rank = 0; rank < cluster->world; rank++) rig_rank_close(cluster->ranks[rank]);
  for (unsigned i = 0; i < cluster->n_tensors; i++)
    for (uint32_t p = 0; p < CLUSTER_PARTS; p++) free(cluster->expected[i][p].payload);
}

bool cluster_owned(const struct cluster_tensor *tensor, uint32_t partition) {
  return tensor->owners[partition] == 0;
}

/* ---- pushes ---- */

/* One slice of all partitions here. Returns its bytes; 0: they are too large for it. */
static uint64_t push_joined(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                            uint32_t timeout_ms, const struct shard_contribution *made, uint64_t total_nnz) {
  const struct zps_tensor_spec *spec = &tensor->spec;
  struct zps_joined join;
  uint64_t m = 0, nnz = 0;
  uint32_t n = 0;
  for (uint32_t p = 0; p < spec->n_parts; p++) {
    if (!cluster_owned(tensor, p)) continue;
    m += made[p].m, nnz += made[p].nnz, n++;
  }
  if (n < 2 || !zps_join_fits(m, nnz, spec->width, made->dtype, made->value_codec)) return 0;
  zps_join_init(&join, spec->width, made->dtype, made->value_codec);
  for (uint32_t p = 0; p < spec->n_parts; p++) {
    struct zps_slice_view view;
    struct zps_error error;
    if (!cluster_owned(tensor, p)) continue;
    if (zps_slice_view_init(&view, ZPS_CODEC_COO, made[p].m, made[p].nnz, spec->width, made->dtype, made->value_codec,
                            made[p].payload, made[p].len_bytes, &error) != ZPS_OK)
      fail_msg("%s", error.text);
    zps_join_add(&join, &view);
  }
  uint8_t payload[ZPS_WIRE_INLINE_MAX];
  enum zps_codec codec;
  struct rig_slice slice = {
      .n_more = n - 1, .is_wide = shard_is_wide(tensor, rank), .nnz = (uint32_t)nnz, .payload = payload};
  assert_true(zps_join_write(&join, ~0u, payload, sizeof payload, &codec, &slice.len_bytes));
  slice.codec = (uint8_t)codec;
  rig_push(cluster->ranks[rank], spec->tensor, step, timeout_ms, total_nnz, &slice, 1);
  return slice.len_bytes;
}

uint64_t cluster_push(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                      uint32_t timeout_ms) {
  struct shard_contribution made[CLUSTER_PARTS];
  struct rig_slice slices[CLUSTER_PARTS];
  unsigned n = 0;
  uint64_t total_nnz = 0, inline_bytes = 0;
  for (uint32_t p = 0; p < tensor->spec.n_parts; p++) {
    made[p] = shard_contribution(tensor, step, rank, p);
    total_nnz += made[p].nnz;
  }
  uint64_t len_bytes = 0;
  if (step % 4 == 3) len_bytes = push_joined(cluster, tensor, step, rank, timeout_ms, made, total_nnz);
  const bool joined = len_bytes > 0;
  for (uint32_t i = 0; !joined && i < tensor->spec.n_parts; i++) {
    const uint32_t p = (uint32_t)((i + step + rank) % tensor->spec.n_parts);
    if (!cluster_owned(tensor, p)) continue;
    const bool is_remote = made[p].len_bytes > 1000;
    if (n > 0 && (step % 2 == 0 || (!is_remote && inline_bytes + made[p].len_bytes > ZPS_WIRE_INLINE_MAX))) {
      rig_push(cluster->ranks[rank], tensor->spec.tensor, step, timeout_ms, total_nnz, slices, n);
      n = 0;
      inline_bytes = 0;
    }
    if (!is_remote) inline_bytes += made[p].len_bytes;
    len_bytes += made[p].len_bytes;
    slices[n++] = (struct rig_slice){.partition = p,
                                     .nnz = made[p].nnz,
                                     .codec = ZPS_CODEC_COO,
                                     .is_remote = is_remote,
                                     .is_wide = shard_is_wide(tensor, rank),
                                     .payload = made[p].payload,
                                     .len_bytes = made[p].len_bytes};
  }
  if (n > 0) rig_push(cluster->ranks[rank], tensor->spec.tensor, step, timeout_ms, total_nnz, slices, n);
  for (uint32_t p = 0; p < tensor->spec.n_parts; p++) shard_contribution_free(&made[p]);
  return len_bytes;
}

/* ---- results ---- */

static const struct cluster_expected *expected_get(struct cluster *cluster, const struct cluster_tensor *tensor,
                                                   uint64_t step, uint32_t p, bool joined) {
  struct cluster_expected *const expected = &cluster->expected[tensor - cluster->tensors][p];
  if (expected->payload && expected->step == step && expected->joined == joined &&
      expected->density == tensor->density && expected->world == cluster->world && expected->late == cluster->late)
    return expected;
  free(expected->payload);
  *expected = (struct cluster_expected){
      .step = step, .density = tensor->density, .world = cluster->world, .late = cluster->late, .joined = joined};
  shard_expected(cluster, tensor, p, expected);
  return expected;
}

/* Longer slices are read. */
static uint32_t inline_bytes(const struct cluster *cluster, const struct cluster_tensor *tensor) {
  const uint64_t row_bytes = zps_row_bytes(tensor->spec.width, zps_dtype_sum(tensor->spec.dtype));
  return zps_wire_inline_bytes(tensor->spec.rows * row_bytes, cluster->world, PLACES);
}

void cluster_check(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank) {
  for (uint32_t p = 0; p < tensor->spec.n_parts; p++) {
    if (!cluster_owned(tensor, p)) continue;
    struct rig_result *result = rig_take_result(cluster->ranks[rank], tensor->spec.tensor, step, p);
    const struct cluster_expected *expected = expected_get(cluster, tensor, step, p, result->was_joined);
    assert_int_equal(result->codec, expected->codec);
    assert_int_equal(result->nnz, expected->nnz);
    assert_int_equal(result->len_bytes, expected->len_bytes);
    assert_int_equal(result->was_inline, expected->len_bytes <= inline_bytes(cluster, tensor));
    assert_memory_equal(result->data, expected->payload, expected->len_bytes);
    free(result);
  }
}

void cluster_done(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank) {
  rig_done(cluster->ranks[rank], tensor->spec.tensor, step);
}

void cluster_round(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step) {
  for (uint32_t i = 0; i < cluster->world; i++) {
    const uint32_t rank = (uint32_t)((i + step) % cluster->world);
    if (shard_has_part(tensor, rank)) cluster_push(cluster, tensor, step, rank, PATIENCE_NEVER_MS);
  }
  for (uint32_t rank = 0; rank < cluster->world; rank++) {
    if (!shard_has_part(tensor, rank)) continue;
    cluster_check(cluster, tensor, step, rank);
    cluster_done(cluster, tensor, step, rank);
    rig_release(cluster->ranks[rank]);
  }
}

void cluster_abort(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                   zps_err_t code, const char *text) {
  struct zps_frame_abort *abort = rig_take_abort(cluster->ranks[rank], tensor->spec.tensor, step);
  if (abort->code != code || !strstr(abort->text, text))
    fail_msg("%s: %s, where %s was expected with: %s", zps_err_name(abort->code), abort->text, zps_err_name(code),
             text);
  assert_non_null(strstr(abort->text, "job job, tensor tensor"));
  free(abort);
}

/* ---- statistics ---- */

struct wanted {
  uint64_t job_id;
  uint32_t tensor;
  struct zps_tensor_stats found;
};

static void visit(void *ctx, const struct zps_tensor_stats *stats) {
  struct wanted *wanted = ctx;
  if (stats->job_id != wanted->job_id || stats->tensor != wanted->tensor) return;
  wanted->found = *stats;
  wanted->found.lag_ns = NULL;
}

struct zps_tensor_stats cluster_stats(struct cluster *cluster, const struct cluster_tensor *tensor) {
  struct zps_shard_totals totals;
  struct wanted wanted = {.job_id = cluster->job_id, .tensor = tensor->spec.tensor};
  assert_int_equal(zps_shard_stats(cluster->shard, &totals, visit, &wanted, NULL), ZPS_OK);
  assert_string_equal(wanted.found.name, tensor->spec.name);
  return wanted.found;
}

struct zps_shard_totals cluster_totals(struct zps_shard *shard) {
  struct zps_shard_totals totals;
  assert_int_equal(zps_shard_stats(shard, &totals, NULL, NULL, NULL), ZPS_OK);
  return totals;
}

void cluster_drain(struct zps_shard *shard) {
  while (cluster_totals(shard).rounds_in_flight > 0) patience_nap();
}

void cluster_check_released(struct zps_shard *shard) {
  struct patience patience = {0};
  while (cluster_totals(shard).slab.in_use_bytes > 0 && !patience_is_over(&patience)) patience_nap();
  assert_int_equal(cluster_totals(shard).slab.in_use_bytes, 0);
}
