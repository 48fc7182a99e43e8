/* A partition's sum, or some rows of it, as it travels: shared by the round that made it and by what sends it. */
#ifndef ZPS_SERVER_SHARD_SUM_H
#define ZPS_SERVER_SHARD_SUM_H

#include "common/codec/codec.h"
#include "common/net/slab.h"

struct zps_shard;

struct zps_shard_sum {
  struct zps_shard *shard;
  struct zps_shard_sum *next; /* free, or held */
  unsigned n_users;
  bool is_held;
  struct zps_buf buf;
  enum zps_codec codec;
  uint32_t nnz;
  uint64_t len_bytes;
  bool is_inline;    /* it travels inside a frame */
  uint64_t checksum; /* of one that is to be read; 0: none */
};

/* Of one user, with nothing in it. ZPS_ERR_NOMEM. */
zps_err_t zps_shard_sum_get(struct zps_shard *shard, struct zps_shard_sum **sum_p) ZPS_MUSTCHECK;
struct zps_shard_sum *zps_shard_sum_ref(struct zps_shard_sum *sum);
/* The last user's frees the buffer. NULL is allowed; *sum_p becomes NULL. */
void zps_shard_sum_unref(struct zps_shard_sum **sum_p);
/* Keeps the sum in memory, whatever its users do, until its list is released: ranks may still read it, though its round
 * is no more. */
void zps_shard_sum_hold(struct zps_shard_sum *sum, struct zps_shard_sum **list);
void zps_shard_sums_release(struct zps_shard_sum **list);
void zps_shard_sums_free(struct zps_shard *shard); /* the free ones */

#endif
