#include "tests/unit/shard_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/codec/join.h"
#include "common/session/link.h"

enum { BUFS_MAX = 4096, WAIT_S = 20 };

struct kept_abort {
  struct kept_abort *next;
  struct zps_frame_abort frame;
};

struct rig_rank {
  struct zps_engine *engine;
  struct zps_net_peer *peer;
  struct zps_link *link;
  struct zps_bulk_peer *bulk;
  const struct rig_layout *layouts[RIG_TENSORS];
  unsigned n_layouts;
  struct zps_buf bufs[BUFS_MAX];
  unsigned n_bufs;
  pthread_mutex_t lock; /* of what the test takes */
  pthread_cond_t more;
  struct rig_result *results;
  struct kept_abort *aborts;
};

/* Not cmocka's: it must work on any thread. */
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                        \
    }                                                                 \
  } while (0)

/* ---- on the engine's thread ---- */

struct fetch {
  struct zps_bulk_read read;
  struct rig_rank *rank;
  struct zps_buf buf;
  struct rig_result *result;
};

static void keep_result(struct rig_rank *rank, struct rig_result *result) {
  pthread_mutex_lock(&rank->lock);
  result->next = rank->results;
  rank->results = result;
  pthread_cond_broadcast(&rank->more);
  pthread_mutex_unlock(&rank->lock);
}

static void fetched(struct zps_bulk_read *read, zps_err_t code) {
  struct fetch *fetch = read->ctx;
  if (code == ZPS_OK) {
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

static struct rig_result *new_result(const struct zps_frame_round *frame, const struct zps_slice *slice) {
  struct rig_result *result =
      aligned_alloc(16, (sizeof *result + (slice->len_bytes > 0 ? slice->len_bytes : 1) + 15) & ~15ull);
  CHECK(result);
  *result = (struct rig_result){.tensor = frame->tensor,
                                .partition = slice->partition,
                                .nnz = slice->nnz,
                                .step = frame->step,
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
  CHECK(layout);
  uint32_t parts[ZPS_WIRE_FRAME_MAX], n = 0;
  uint64_t m = 0;
  for (uint32_t p = slice->partition; p < layout->n_parts && n <= slice->n_more; p++) {
    if (layout->sizes[p] == UINT32_MAX) continue;
    parts[n++] = p;
    m += layout->sizes[p];
  }
  CHECK(n == slice->n_more + 1);
  struct zps_split split;
  struct zps_error error;
  CHECK(zps_split_init(&split, slice->codec, m, slice->nnz, layout->width, layout->dtype, layout->value_codec,
                       slice->data, slice->len_bytes, &error) == ZPS_OK);
  for (uint32_t i = 0; i < n; i++) {
    uint8_t coo[ZPS_JOIN_BYTES_MAX];
    struct zps_slice one = {.partition = parts[i], .is_inline = true, .data = coo};
    one.nnz = zps_split_next(&split, layout->sizes[parts[i]]);
    one.len_bytes = zps_split_write(&split, coo);
    struct rig_result *result = new_result(frame, &one);
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
    struct rig_result *result = new_result(frame, slice);
    if (slice->is_inline) {
      keep_result(rank, result);
      continue;
    }
    struct fetch *fetch = calloc(1, sizeof *fetch);
    CHECK(fetch && zps_slab_get(zps_engine_slab(rank->engine), slice->len_bytes, &fetch->buf) == ZPS_OK);
    fetch->rank = rank;
    fetch->result = result;
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

static void on_frame(void *ctx, const struct zps_frame *frame) {
  struct rig_rank *rank = ctx;
  struct zps_error error;
  if (!rank->link) return;
  CHECK(zps_link_received(rank->link, &frame->header, &error) == ZPS_OK);
  if (frame->header.type == ZPS_FRAME_RESULT) on_result(rank, &frame->u.round);
  if (frame->header.type != ZPS_FRAME_ABORT) return;
  struct kept_abort *kept = calloc(1, sizeof *kept);
  CHECK(kept);
  kept->frame = frame->u.abort;
  pthread_mutex_lock(&rank->lock);
  kept->next = rank->aborts;
  rank->aborts = kept;
  pthread_cond_broadcast(&rank->more);
  pthread_mutex_unlock(&rank->lock);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  (void)peer;
  fprintf(stderr, "rig: %s: %s\n", zps_err_name(code), text);
}

static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  struct rig_rank *rank = ctx;
  (void)now_ns;
  if (rank->link) zps_link_progress(rank->link);
  return UINT64_MAX;
}

/* ---- on the test's thread ---- */

struct call {
  struct zps_command command;
  struct rig_rank *rank;
  const struct zps_net_info *server;
  const struct rig_layout *layout;
  uint64_t job;
  uint32_t number;
  const struct rig_slice *slices;
  struct zps_frame *frame;
};

static void run_on(struct rig_rank *rank, struct call *call, void (*run)(struct zps_command *, void *)) {
  call->command.run = run;
  call->rank = rank;
  CHECK(zps_engine_call(rank->engine, &call->command) == ZPS_OK);
}

struct rig_rank *rig_rank_open(const char *provider, const char *fault) {
  struct rig_rank *rank = calloc(1, sizeof *rank);
  CHECK(rank);
  pthread_mutex_init(&rank->lock, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&rank->more, &attr);
  pthread_condattr_destroy(&attr);
  const struct zps_engine_config config = {.name = "rig",
                                           .net = {.provider = provider,
                                                   .fault = fault,
                                                   .max_msg = ZPS_WIRE_FRAME_MAX,
                                                   .n_recv = 4,
                                                   .connect_timeout_ms = 5000},
                                           .memory_limit_bytes = 1ull << 30,
                                           .memory_cache_bytes = 1ull << 26};
  const struct zps_engine_handler handler = {
      .ctx = rank, .on_frame = on_frame, .on_peer_error = on_peer_error, .on_tick = on_tick};
  struct zps_error error = {0};
  if (zps_engine_create(&config, &handler, &rank->engine, &error) != ZPS_OK) fprintf(stderr, "rig: %s\n", error.text);
  CHECK(rank->engine);
  return rank;
}

const struct zps_net_info *rig_rank_info(struct rig_rank *rank) {
  return zps_net_info(zps_engine_net(rank->engine));
}

static void run_connect(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct rig_rank *rank = ctx;
  struct zps_error error;
  struct zps_net *net = zps_engine_net(rank->engine);
  CHECK(zps_net_peer_add(net, call->server->addr, call->server->addr_len, rank, &rank->peer, &error) == ZPS_OK);
  CHECK(zps_bulk_peer_add(zps_engine_bulk(rank->engine), rank->peer, &rank->bulk) == ZPS_OK);
  CHECK(zps_link_create(net, rank->peer, call->job, 1, call->number, 0, &rank->link) == ZPS_OK);
}

void rig_rank_connect(struct rig_rank *rank, const struct zps_net_info *server, uint64_t job, uint32_t number) {
  struct call call = {.server = server, .job = job, .number = number};
  run_on(rank, &call, run_connect);
}

static void run_layout(struct zps_command *command, void *ctx) {
  struct rig_rank *rank = ctx;
  CHECK(rank->n_layouts < RIG_TENSORS);
  rank->layouts[rank->n_layouts++] = ((struct call *)command)->layout;
}

void rig_rank_layout(struct rig_rank *rank, const struct rig_layout *layout) {
  struct call call = {.layout = layout};
  run_on(rank, &call, run_layout);
}

static void run_release(struct zps_command *command, void *ctx) {
  struct rig_rank *rank = ctx;
  (void)command;
  while (rank->n_bufs > 0) zps_slab_put(zps_engine_slab(rank->engine), &rank->bufs[--rank->n_bufs]);
}

void rig_release(struct rig_rank *rank) {
  struct call call = {0};
  run_on(rank, &call, run_release);
}

static void run_close(struct zps_command *command, void *ctx) {
  struct rig_rank *rank = ctx;
  (void)command;
  zps_link_destroy(rank->link);
  zps_net_peer_evict(rank->peer);
  zps_bulk_peer_remove(rank->bulk);
  rank->link = NULL;
}

void rig_rank_close(struct rig_rank *rank) {
  struct call call = {0};
  rig_release(rank);
  run_on(rank, &call, run_close);
  zps_engine_destroy(rank->engine);
  for (struct rig_result *result = rank->results, *next; result; result = next) {
    next = result->next;
    free(result);
  }
  for (struct kept_abort *kept = rank->aborts, *next; kept; kept = next) {
    next = kept->next;
    free(kept);
  }
  pthread_cond_destroy(&rank->more);
  pthread_mutex_destroy(&rank->lock);
  free(rank);
}

static void run_push(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct rig_rank *rank = ctx;
  struct zps_frame_round *push = &call->frame->u.round;
  for (uint32_t i = 0; i < push->n_slices; i++) {
    const struct rig_slice *from = &call->slices[i];
    struct zps_slice *slice = &push->slices[i];
    *slice = (struct zps_slice){.partition = from->partition,
                                .n_more = from->n_more,
                                .codec = from->codec,
                                .is_inline = !from->is_remote,
                                .nnz = from->nnz,
                                .len_bytes = from->len_bytes,
                                .data = from->payload};
    if (!from->is_remote) continue;
    CHECK(rank->n_bufs < BUFS_MAX);
    struct zps_buf *buf = &rank->bufs[rank->n_bufs];
    CHECK(zps_slab_get(zps_engine_slab(rank->engine), from->len_bytes, buf) == ZPS_OK);
    rank->n_bufs++;
    memcpy(buf->data, from->payload, from->len_bytes);
    slice->addr = buf->addr;
    slice->key = buf->key;
    slice->data = NULL;
  }
  CHECK(zps_link_send(rank->link, call->frame) == ZPS_OK);
}

void rig_push(struct rig_rank *rank, uint32_t tensor, uint64_t step, uint32_t timeout_ms, uint64_t total_nnz,
              const struct rig_slice *slices, unsigned n) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH};
  frame.u.round = (struct zps_frame_round){
      .tensor = tensor, .step = step, .total_nnz = total_nnz, .timeout_ms = timeout_ms, .n_slices = n};
  struct call call = {.frame = &frame, .slices = slices};
  run_on(rank, &call, run_push);
}

static void run_send(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct rig_rank *rank = ctx;
  CHECK(zps_link_send(rank->link, call->frame) == ZPS_OK);
}

void rig_send(struct rig_rank *rank, struct zps_frame *frame) {
  struct call call = {.frame = frame};
  run_on(rank, &call, run_send);
}

void rig_done(struct rig_rank *rank, uint32_t tensor, uint64_t step) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = tensor, .step = step}};
  rig_send(rank, &frame);
}

void rig_cancel(struct rig_rank *rank, uint32_t tensor, uint64_t step, const char *text) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT,
                            .u.abort = {.tensor = tensor, .step = step, .code = ZPS_ERR_CANCELED}};
  snprintf(frame.u.abort.text, sizeof frame.u.abort.text, "%s", text);
  rig_send(rank, &frame);
}

static void wait_more(struct rig_rank *rank, const struct timespec *until, const char *what, uint64_t step) {
  if (pthread_cond_timedwait(&rank->more, &rank->lock, until) == 0) return;
  fprintf(stderr, "no %s of step %llu within %d s\n", what, (unsigned long long)step, WAIT_S);
  for (const struct kept_abort *kept = rank->aborts; kept; kept = kept->next)
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
  pthread_mutex_lock(&rank->lock);
  for (;;) {
    for (struct rig_result **link = &rank->results, *result; (result = *link) != NULL; link = &result->next) {
      if (result->tensor != tensor || result->step != step || result->partition != partition) continue;
      *link = result->next;
      pthread_mutex_unlock(&rank->lock);
      return result;
    }
    wait_more(rank, &until, "result", step);
  }
}

struct zps_frame_abort *rig_take_abort(struct rig_rank *rank, uint32_t tensor, uint64_t step) {
  const struct timespec until = deadline();
  pthread_mutex_lock(&rank->lock);
  for (;;) {
    for (struct kept_abort **link = &rank->aborts, *kept; (kept = *link) != NULL; link = &kept->next) {
      if (kept->frame.tensor != tensor || kept->frame.step != step) continue;
      *link = kept->next;
      pthread_mutex_unlock(&rank->lock);
      struct zps_frame_abort *frame = malloc(sizeof *frame);
      CHECK(frame);
      *frame = kept->frame;
      free(kept);
      return frame;
    }
    wait_more(rank, &until, "abort", step);
  }
}

unsigned rig_left(struct rig_rank *rank) {
  unsigned n = 0;
  pthread_mutex_lock(&rank->lock);
  for (const struct rig_result *result = rank->results; result; result = result->next) n++;
  for (const struct kept_abort *kept = rank->aborts; kept; kept = kept->next) n++;
  pthread_mutex_unlock(&rank->lock);
  return n;
}
