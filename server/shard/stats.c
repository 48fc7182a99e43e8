/* Sums over a tensor's rounds. */
#include "server/shard/stats.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/tensor.h"

zps_err_t zps_sums_init(struct zps_tensor *tensor) {
  const size_t world = tensor->job->world;
  struct zps_tensor_sums *sums = &tensor->sums;
  sums->total_nnz = calloc(world, sizeof sums->total_nnz[0]);
  sums->lag_ns = calloc(world, sizeof sums->lag_ns[0]);
  sums->late = calloc(world, sizeof sums->late[0]);
  sums->since_ns = zps_clock_ns();
  return sums->total_nnz && sums->lag_ns && sums->late ? ZPS_OK : ZPS_ERR_NOMEM;
}

zps_err_t zps_sums_place(struct zps_tensor *tensor) {
  const size_t world = tensor->job->world;
  struct zps_placing *const placing = &tensor->placing;
  placing->rows = calloc(world * placing->n + 1, sizeof placing->rows[0]);
  placing->part_union = calloc((size_t)placing->n + 1, sizeof placing->part_union[0]);
  return placing->rows && placing->part_union ? ZPS_OK : ZPS_ERR_NOMEM;
}

void zps_sums_move(struct zps_tensor *tensor, const uint32_t *partitions, uint32_t n_parts) {
  const size_t world = tensor->job->world;
  struct zps_tensor_sums *const sums = &tensor->sums;
  struct zps_placing *const placing = &tensor->placing;
  for (uint32_t part = 0; part < n_parts; part++) {
    const uint32_t to = placing->positions[partitions[part]];
    if (to == UINT32_MAX) continue;
    placing->part_union[to] = sums->part_union[part];
    memcpy(&placing->rows[to * world], &sums->rows[part * world], world * sizeof sums->rows[0]);
  }
  free(sums->rows);
  free(sums->part_union);
  sums->rows = placing->rows;
  sums->part_union = placing->part_union;
}

void zps_sums_fini(struct zps_tensor *tensor) {
  struct zps_tensor_sums *sums = &tensor->sums;
  free(sums->rows);
  free(sums->part_union);
  free(sums->total_nnz);
  free(sums->lag_ns);
  free(sums->late);
  *sums = (struct zps_tensor_sums){0};
}

/* Zen's definition 8 of this round and this server: what it was sent of a rank's rows, over its even share. */
static double step_load(const struct zps_tensor *tensor, const struct zps_shard_round *round) {
  const uint32_t world = tensor->job->world;
  double worst = 0;
  for (uint32_t rank = 0; rank < world; rank++) {
    uint64_t here = 0;
    for (uint32_t part = 0; part < tensor->parts_here; part++) here += round->nnz[(size_t)part * world + rank];
    if (round->total_nnz[rank] == 0 || tensor->parts_here == 0) continue;
    const double even = (double)round->total_nnz[rank] * tensor->parts_here / tensor->partition.n_parts;
    if ((double)here / even > worst) worst = (double)here / even;
  }
  return worst;
}

void zps_sums_add(struct zps_tensor *tensor, const struct zps_shard_round *round) {
  struct zps_tensor_sums *sums = &tensor->sums;
  const uint32_t world = tensor->job->world;
  sums->rounds++;
  sums->collect_ns += round->collected_ns - round->opened_ns;
  sums->reduce_ns += round->reduce_ns;
  sums->step_loads += step_load(tensor, round);
  for (uint32_t part = 0; part < tensor->parts_here; part++) {
    sums->union_rows += round->parts[part].nnz;
    sums->part_union[part] += round->parts[part].nnz;
    for (uint32_t rank = 0; rank < world; rank++) {
      const uint32_t nnz = round->nnz[(size_t)part * world + rank];
      sums->push_rows += nnz;
      sums->rows[(size_t)part * world + rank] += nnz;
    }
  }
  for (uint32_t rank = 0; rank < world; rank++) {
    sums->total_nnz[rank] += round->total_nnz[rank];
    if (zps_shard_machine_is_late(round->machine, rank))
      sums->lag_ns[rank] += round->collected_ns - round->opened_ns; /* the others waited so long for it */
    else if (round->first_push_ns[rank])
      sums->lag_ns[rank] += round->first_push_ns[rank] - round->opened_ns;
  }
}

/* Zen's definition 8, as far as this server sees it. */
static double imbalance(const struct zps_tensor *tensor) {
  const struct zps_tensor_sums *sums = &tensor->sums;
  const uint32_t world = tensor->job->world;
  double worst = 0;
  for (uint32_t part = 0; part < tensor->parts_here; part++) {
    for (uint32_t rank = 0; rank < world; rank++) {
      if (sums->total_nnz[rank] == 0) continue;
      const double ratio = (double)tensor->partition.n_parts * (double)sums->rows[(size_t)part * world + rank] /
                           (double)sums->total_nnz[rank];
      if (ratio > worst) worst = ratio;
    }
  }
  return worst;
}

void zps_sums_visit(const struct zps_tensor *tensor, void (*visit)(void *ctx, const struct zps_tensor_stats *stats),
                    void *ctx) {
  const struct zps_tensor_sums *sums = &tensor->sums;
  struct zps_tensor_stats stats = {.job_id = tensor->job->id,
                                   .tensor = tensor->id,
                                   .rows = tensor->partition.rows,
                                   .width = tensor->width,
                                   .n_parts = tensor->partition.n_parts,
                                   .parts_here = tensor->parts_here,
                                   .dtype = tensor->array_dtype,
                                   .op = tensor->op,
                                   .age_ns = zps_clock_ns() - sums->since_ns,
                                   .rounds = sums->rounds,
                                   .aborted = sums->aborted,
                                   .bytes_in = sums->bytes_in,
                                   .bytes_out = sums->bytes_out,
                                   .push_rows = sums->push_rows,
                                   .union_rows = sums->union_rows,
                                   .imbalance_push = imbalance(tensor),
                                   .step_loads = sums->step_loads,
                                   .collect_ns = sums->collect_ns,
                                   .reduce_ns = sums->reduce_ns,
                                   .publish_ns = sums->publish_ns,
                                   .lag_ns = sums->lag_ns,
                                   .late = sums->late,
                                   .world = tensor->job->world};
  memcpy(stats.name, tensor->name, sizeof stats.name);
  for (uint32_t part = 0; part < tensor->parts_here; part++)
    if (sums->part_union[part] > stats.union_rows_max_part) stats.union_rows_max_part = sums->part_union[part];
  visit(ctx, &stats);
}
