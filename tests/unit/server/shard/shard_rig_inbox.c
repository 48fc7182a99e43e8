/* The messages of the server to a rank: read, kept, and taken by the test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/codec/join.h"
#include "tests/unit/server/shard/shard_rig_rank.h"

enum { WAIT_S = PATIENCE_WALL_NS / ZPS_NS_PER_S };

struct kept_abort {
  struct kept_abort *next;
  struct zps_frame_abort frame;
};

void rig_inbox_init(struct rig_inbox *inbox) {
  pthread_mutex_init(&inbox->lock, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&inbox->more, &attr);
  pthread_condattr_destroy(&attr);
}

static void drop_results(struct rig_inbox *inbox) {
  for (struct rig_result *result = inbox->results, *next; result; result = next) {
    next = result->next;
    free(result);
  }
  inbox->results = NULL;
}

void rig_inbox_fini(struct rig_inbox *inbox) {
  drop_results(inbox);
  struct kept_abort *const lists[] = {inbox->aborts, inbox->taken};
  for (unsigned i = 0; i < 2; i++) {
    for (struct kept_abort *kept = lists[i], *next; kept; kept = next) {
      next = kept->next;
      free(kept);
    }
  }
  pthread_cond_destroy(&inbox->more);
  pthread_mutex_destroy(&inbox->lock);
}

/* ---- on the engine's thread ---- */

struct fetch {
  struct zps_bulk_read read;
  struct rig_rank *rank;
  struct zps_buf buf;
  struct rig_result *result;
  uint64_t sum;
};

void rig_inbox_set_epoch(struct rig_inbox *inbox, uint32_t epoch) {
  pthread_mutex_lock(&inbox->lock);
  inbox->epoch = epoch;
  drop_results(inbox);
  pthread_mutex_unlock(&inbox->lock);
}

static void keep_result(struct rig_rank *rank, struct rig_result *result) {
  if (result->epoch != rank->inbox.epoch) {
    free(result);
    return;
  }
  pthread_mutex_lock(&rank->inbox.lock);
  result->next = rank->inbox.results;
  rank->inbox.results = result;
  pthread_cond_broadcast(&rank->inbox.more);
  pthread_mutex_unlock(&rank->inbox.lock);
}

static void fetched(struct zps_bulk_read *read, zps_err_t code) {
  struct fetch *fetch = read->ctx;
  if (code == ZPS_OK) {
    RIG_CHECK(zps_checks_sum(fetch->rank->checks, fetch->buf.data, fetch->result->len_bytes) == fetch->sum);
    memcpy(fetch->result->data, fetch->buf.data, fetch->result->len_bytes);
    keep_result(fetch->rank, fetch->result);
  } else {
    free(fetch->result);
  }
  if (code == ZPS_ERR_PEER_LOST) return;
  zps_slab_put(zps_engine_slab(fetch->rank->engine), &fetch->buf);
  free(fetch);
}

static void fetch_released(struct zps_bulk_read *read) {
  struct fetch *fetch = read->ctx;
  zps_slab_put(zps_engine_slab(fetch->rank->engine), &fetch->buf);
  free(fetch);
}

static struct rig_result *new_result(const struct rig_rank *rank, const struct zps_frame_round *frame,
                                     const struct zps_slice *slice) {
  struct rig_result *result =
      aligned_alloc(16, (sizeof *result + (slice->len_bytes > 0 ? slice->len_bytes : 1) + 15) & ~15ull);
  RIG_CHECK(result);
  *result = (struct rig_result){.tensor = frame->tensor,
                                .partition = slice->partition,
                                .nnz = slice->nnz,
                                .epoch = rank->inbox.epoch,
                                .step = frame->step - frame->age,
                                .len_bytes = slice->len_bytes,
                                .codec = slice->codec,
                                .was_inline = slice->is_inline};
  if (slice->is_inline && slice->len_bytes > 0) memcpy(result->data, slice->data, slice->len_bytes);
  return result;
}

static void take_joined(struct rig_rank *rank, const struct zps_frame_round *frame, const struct zps_slice *slice) {
  const struct rig_layout *layout = NULL;
  for (unsigned i = 0; i < rank->n_layouts; i++)
    if (rank->layouts[i]->tensor == frame->tensor) layout = rank->layouts[i];
  RIG_CHECK(layout);
  uint32_t parts[ZPS_WIRE_FRAME_MAX], n = 0;
  uint64_t m = 0;
  for (uint32_t p = slice->partition; p < layout->n_parts && n <= slice->n_more; p++) {
    if (layout->sizes[p] == UINT32_MAX) continue;
    parts[n++] = p;
    m += layout->sizes[p];
  }
  RIG_CHECK(n == slice->n_more + 1);
  struct zps_split split;
  struct zps_error error;
  RIG_CHECK(zps_split_init(&split, slice->codec, m, slice->nnz, layout->width, layout->dtype, layout->value_codec,
                           slice->data, slice->len_bytes, &error) == ZPS_OK);
  for (uint32_t i = 0; i < n; i++) {
    uint8_t coo[ZPS_JOIN_BYTES_MAX];
    struct zps_slice one = {.partition = parts[i], .is_inline = true, .data = coo};
    one.nnz = zps_split_next(&split, layout->sizes[parts[i]]);
    one.len_bytes = zps_split_write(&split, coo);
    struct rig_result *result = new_result(rank, frame, &one);
    result->was_joined = true;
    keep_result(rank, result);
  }
}

static void on_result(struct rig_rank *rank, const struct zps_frame_round *frame) {
  for (uint32_t i = 0; i < frame->n_slices; i++) {
    const struct zps_slice *slice = &frame->slices[i];
    if (slice->n_more > 0) {
      take_joined(rank, frame, slice);
      continue;
    }
    struct rig_result *result = new_result(rank, frame, slice);
    if (slice->is_inline) {
      keep_result(rank, result);
      continue;
    }
    struct fetch *fetch = calloc(1, sizeof *fetch);
    RIG_CHECK(fetch && zps_slab_get(zps_engine_slab(rank->engine), slice->len_bytes, &fetch->buf) == ZPS_OK);
    fetch->rank = rank;
    fetch->result = result;
    fetch->sum = slice->sum;
    fetch->read = (struct zps_bulk_read){.local = fetch->buf.data,
                                         .mem = fetch->buf.mem,
                                         .len = slice->len_bytes,
                                         .addr = slice->addr,
                                         .key = slice->key,
                                         .done = fetched,
                                         .release = fetch_released,
                                         .ctx = fetch};
    zps_bulk_start(rank->bulk, &fetch->read);
  }
}

void rig_on_frame(void *ctx, const struct zps_frame *frame) {
  struct rig_rank *rank = ctx;
  struct zps_error error;
  if (!rank->link) return;
  const zps_err_t code = zps_link_received(rank->link, &frame->header, &error);
  RIG_CHECK(code == ZPS_OK || code == ZPS_ERR_STALE);
  if (code != ZPS_OK) return;
  const uint8_t type = frame->header.type;
  if (type == ZPS_FRAME_RESULT || type == ZPS_FRAME_FOUND) on_result(rank, &frame->u.round);
  if (type != ZPS_FRAME_ABORT && type != ZPS_FRAME_MISSED && type != ZPS_FRAME_TAKEN) return;
  struct kept_abort *kept = calloc(1, sizeof *kept), **list = &rank->inbox.aborts;
  RIG_CHECK(kept);
  if (type == ZPS_FRAME_TAKEN) {
    kept->frame.tensor = frame->u.done.tensor;
    kept->frame.step = frame->u.done.step;
    list = &rank->inbox.taken;
  } else {
    kept->frame = frame->u.abort;
  }
  pthread_mutex_lock(&rank->inbox.lock);
  kept->next = *list;
  *list = kept;
  pthread_cond_broadcast(&rank->inbox.more);
  pthread_mutex_unlock(&rank->inbox.lock);
}

/* ---- on the test's thread ---- */

static void wait_more(struct rig_rank *rank, const struct timespec *until, const char *what, uint64_t step) {
  if (pthread_cond_timedwait(&rank->inbox.more, &rank->inbox.lock, until) == 0) return;
  fprintf(stderr, "no %s of step %llu within %d s\n", what, (unsigned long long)step, WAIT_S);
  for (const struct kept_abort *kept = rank->inbox.aborts; kept; kept = kept->next)
    fprintf(stderr, "  but: %s\n", kept->frame.text);
  abort();
}

static struct timespec deadline(void) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += WAIT_S;
  return until;
}

struct rig_result *rig_take_result(struct rig_rank *rank, uint32_t tensor, uint64_t step, uint32_t partition) {
  const struct timespec until = deadline();
  pthread_mutex_lock(&rank->inbox.lock);
  for (;;) {
    for (struct rig_result **link = &rank->inbox.results, *result; (result = *link) != NULL; link = &result->next) {
      if (result->tensor != tensor || result->step != step || result->partition != partition) continue;
      *link = result->next;
      pthread_mutex_unlock(&rank->inbox.lock);
      return result;
    }
    wait_more(rank, &until, "result", step);
  }
}

static struct zps_frame_abort *take(struct rig_rank *rank, struct kept_abort **list, uint32_t tensor, uint64_t step,
                                    const char *what) {
  const struct timespec until = deadline();
  pthread_mutex_lock(&rank->inbox.lock);
  for (;;) {
    for (struct kept_abort **link = list, *kept; (kept = *link) != NULL; link = &kept->next) {
      if (kept->frame.tensor != tensor || kept->frame.step != step) continue;
      *link = kept->next;
      pthread_mutex_unlock(&rank->inbox.lock);
      struct zps_frame_abort *frame = malloc(sizeof *frame);
      RIG_CHECK(frame);
      *frame = kept->frame;
      free(kept);
      return frame;
    }
    wait_more(rank, &until, what, step);
  }
}

struct zps_frame_abort *rig_take_abort(struct rig_rank *rank, uint32_t tensor, uint64_t step) {
  return take(rank, &rank->inbox.aborts, tensor, step, "abort");
}

void rig_take_taken(struct rig_rank *rank, uint32_t tensor, uint64_t step) {
  free(take(rank, &rank->inbox.taken, tensor, step, "TAKEN"));
}

unsigned rig_left(struct rig_rank *rank) {
  unsigned n = 0;
  pthread_mutex_lock(&rank->inbox.lock);
  for (const struct rig_result *result = rank->inbox.results; result; result = result->next) n++;
  for (const struct kept_abort *kept = rank->inbox.aborts; kept; kept = kept->next) n++;
  pthread_mutex_unlock(&rank->inbox.lock);
  return n;
}
