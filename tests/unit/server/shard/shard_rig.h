/* Fake workers for tests of the server's data plane: each has an engine of its own, pushes the slices that the test
 * gives it, reads every result that is announced and keeps every abort, for the test's thread to take. */
#ifndef ZPS_TESTS_SERVER_SHARD_SHARD_RIG_H
#define ZPS_TESTS_SERVER_SHARD_SHARD_RIG_H

#include "common/codec/codec.h"
#include "common/session/engine.h"
#include "tests/support/patience.h"

struct rig_rank;

struct rig_result {
  struct rig_result *next;
  uint32_t tensor, partition, nnz, epoch;
  uint64_t step, len_bytes;
  uint8_t codec;
  bool was_inline, was_joined; /* joined: `data` is the slice taken out of it, as COO */
  _Alignas(16) uint8_t data[];
};

struct rig_slice {
  uint32_t partition, n_more, nnz;
  uint8_t codec;
  bool is_remote, is_wide;
  const void *payload;
  uint64_t len_bytes;
};

enum { RIG_TENSORS = 4 };

/* The state for taking joined results apart. */
struct rig_layout {
  uint32_t tensor, n_parts, width;
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  const uint32_t *sizes; /* by partition; those of other servers are UINT32_MAX */
};

struct rig_rank *rig_rank_open(const char *provider, const char *fault);
const struct zps_net_info *rig_rank_info(struct rig_rank *rank);
/* `since`: the epoch with which the server came into the job, or 0. */
void rig_rank_connect(struct rig_rank *rank, const struct zps_net_info *server, uint64_t job, uint32_t number,
                      uint32_t since);
/* `layout` is borrowed until the rank is closed; before the tensor's first push. */
void rig_rank_layout(struct rig_rank *rank, const struct rig_layout *layout);
void rig_rank_close(struct rig_rank *rank);
/* One PUSH frame. Remote payloads are copied to registered memory, which lives until rig_release(). */
void rig_push(struct rig_rank *rank, uint32_t tensor, uint64_t step, uint32_t timeout_ms, uint64_t total_nnz,
              const struct rig_slice *slices, unsigned n);
void rig_release(struct rig_rank *rank);
/* From here on its frames are of this epoch; those of the server that are of another are dropped, and so are results
 * that came before. */
void rig_epoch(struct rig_rank *rank, uint32_t epoch);
/* Its pushes from here on are GIVE frames, or PUSH frames again. */
void rig_gives(struct rig_rank *rank, bool gives);
/* Memory that it announces from here on has changed by the time that it is read, or not again. */
void rig_overwrites(struct rig_rank *rank, bool overwrites);
void rig_done(struct rig_rank *rank, uint32_t tensor, uint64_t step);
void rig_cancel(struct rig_rank *rank, uint32_t tensor, uint64_t step, const char *text);
/* Any frame at all. */
void rig_send(struct rig_rank *rank, struct zps_frame *frame);
/* These wait for the result or abort (and fail the test after 20 s) and take it; the caller frees it. FOUND is a result
 * of the sum's step, MISSED an abort with the number of the SEEK. */
struct rig_result *rig_take_result(struct rig_rank *rank, uint32_t tensor, uint64_t step, uint32_t partition);
struct zps_frame_abort *rig_take_abort(struct rig_rank *rank, uint32_t tensor, uint64_t step);
/* Waits for TAKEN of the step, and takes it. */
void rig_take_taken(struct rig_rank *rank, uint32_t tensor, uint64_t step);
/* The frames that came and were not taken. */
unsigned rig_left(struct rig_rank *rank);

#endif
