#include "server/shard/sum.h"

#include <stdlib.h>

#include "server/shard/shard_impl.h"

zps_err_t zps_shard_sum_get(struct zps_shard *shard, struct zps_shard_sum **sum_p) {
  struct zps_shard_sum *sum = shard->free_sums;
  if (sum)
    shard->free_sums = sum->next;
  else if (!(sum = malloc(sizeof *sum)))
    return ZPS_ERR_NOMEM;
  *sum = (struct zps_shard_sum){.shard = shard, .n_users = 1};
  *sum_p = sum;
  return ZPS_OK;
}

struct zps_shard_sum *zps_shard_sum_ref(struct zps_shard_sum *sum) {
  sum->n_users++;
  return sum;
}

void zps_shard_sum_unref(struct zps_shard_sum **sum_p) {
  struct zps_shard_sum *sum = *sum_p;
  *sum_p = NULL;
  if (!sum || --sum->n_users > 0) return;
  zps_slab_put(sum->shard->slab, &sum->buf);
  sum->next = sum->shard->free_sums;
  sum->shard->free_sums = sum;
}

void zps_shard_sum_hold(struct zps_shard_sum *sum, struct zps_shard_sum **list) {
  if (sum->is_held) return;
  sum->is_held = true;
  sum->n_users++;
  sum->next = *list;
  *list = sum;
  sum->shard->n_held++;
}

void zps_shard_sums_release(struct zps_shard_sum **list) {
  for (struct zps_shard_sum *sum; (sum = *list) != NULL;) {
    *list = sum->next;
    sum->is_held = false;
    sum->shard->n_held--;
    zps_shard_sum_unref(&sum);
  }
}

void zps_shard_sums_free(struct zps_shard *shard) {
  for (struct zps_shard_sum *sum; (sum = shard->free_sums) != NULL;) {
    shard->free_sums = sum->next;
    free(sum);
  }
}
