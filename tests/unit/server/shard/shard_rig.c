#include "tests/unit/server/shard/shard_rig_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fabrics/loop.h"

/* ---- on the engine's thread ---- */

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
  uint32_t number, since;
  const struct rig_slice *slices;
  struct zps_frame *frame;
};

static void run_on(struct rig_rank *rank, struct call *call, void (*run)(struct zps_command *, void *)) {
  call->command.run = run;
  call->rank = rank;
  RIG_CHECK(zps_engine_call(rank->engine, &call->command) == ZPS_OK);
}

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  (void)header;
  return ((struct rig_rank *)ctx)->link;
}

struct rig_rank *rig_rank_open(const char *provider, const char *fault) {
  struct rig_rank *rank = calloc(1, sizeof *rank);
  RIG_CHECK(rank);
  rig_inbox_init(&rank->inbox);
  const struct zps_engine_config config = {.name = "rig",
                                           .net = {.provider = provider,
                                                   .fault = fault,
                                                   .max_msg = ZPS_WIRE_MESSAGE_MAX,
                                                   .n_recv = 4,
                                                   .connect_timeout_ms = PATIENCE_NEVER_MS},
                                           .memory_limit_bytes = 1ull << 30,
                                           .memory_cache_bytes = 1ull << 26};
  const struct zps_engine_handler handler = {.ctx = rank,
                                             .find_link = find_link,
                                             .on_frame = rig_on_frame,
                                             .on_peer_error = on_peer_error,
                                             .on_tick = on_tick};
  struct zps_error error = {0};
  if (zps_engine_create(&config, &handler, &rank->engine, &error) != ZPS_OK) fprintf(stderr, "rig: %s\n", error.text);
  RIG_CHECK(rank->engine);
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
  RIG_CHECK(zps_net_peer_add(net, call->server->addr, call->server->addr_len, rank, &rank->peer, &error) == ZPS_OK);
  RIG_CHECK(zps_bulk_peer_add(zps_engine_bulk(rank->engine), rank->peer, &rank->bulk) == ZPS_OK);
  const struct zps_secret secret = {{0}};
  const struct zps_link_ends ends = {.job = call->job,
                                     .epoch = 1,
                                     .self = call->number,
                                     .other = ZPS_WIRE_SRC_SERVER,
                                     .secret = &secret,
                                     .server = call->server->addr,
                                     .server_len = call->server->addr_len,
                                     .since = call->since};
  RIG_CHECK(zps_link_create(net, rank->peer, &ends, &rank->link) == ZPS_OK);
  RIG_CHECK(zps_checks_create(&secret, call->job, rank->engine, NULL, NULL, &rank->checks, &error) == ZPS_OK);
}

void rig_rank_connect(struct rig_rank *rank, const struct zps_net_info *server, uint64_t job, uint32_t number,
                      uint32_t since) {
  struct call call = {.server = server, .job = job, .number = number, .since = since};
  run_on(rank, &call, run_connect);
}

static void run_layout(struct zps_command *command, void *ctx) {
  struct rig_rank *rank = ctx;
  RIG_CHECK(rank->n_layouts < RIG_TENSORS);
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
  zps_checks_unref(rank->checks);
  rig_inbox_fini(&rank->inbox);
  free(rank);
}

static void run_push(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct rig_rank *rank = ctx;
  struct zps_frame_round *push = &call->frame->u.round;
  if (rank->gives) call->frame->header.type = ZPS_FRAME_GIVE;
  for (uint32_t i = 0; i < push->n_slices; i++) {
    const struct rig_slice *from = &call->slices[i];
    struct zps_slice *slice = &push->slices[i];
    *slice = (struct zps_slice){.partition = from->partition,
                                .n_more = from->n_more,
                                .is_wide = from->is_wide,
                                .codec = from->codec,
                                .is_inline = !from->is_remote,
                                .nnz = from->nnz,
                                .len_bytes = from->len_bytes,
                                .data = from->payload};
    if (!from->is_remote) continue;
    RIG_CHECK(rank->n_bufs < RIG_BUFS_MAX);
    struct zps_buf *buf = &rank->bufs[rank->n_bufs];
    RIG_CHECK(zps_slab_get(zps_engine_slab(rank->engine), from->len_bytes, buf) == ZPS_OK);
    rank->n_bufs++;
    memcpy(buf->data, from->payload, from->len_bytes);
    slice->sum = zps_checks_sum(rank->checks, buf->data, from->len_bytes);
    if (rank->overwrites) memset((char *)buf->data + from->len_bytes / 2, 0x3f, 4);
    slice->addr = buf->addr;
    slice->key = buf->key;
    slice->data = NULL;
  }
  RIG_CHECK(zps_link_send(rank->link, call->frame) == ZPS_OK);
}

void rig_push(struct rig_rank *rank, uint32_t tensor, uint64_t step, uint32_t timeout_ms, uint64_t total_nnz,
              const struct rig_slice *slices, unsigned n) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH};
  frame.u.round = (struct zps_frame_round){
      .tensor = tensor, .step = step, .total_nnz = total_nnz, .timeout_ms = timeout_ms, .n_slices = n};
  struct call call = {.frame = &frame, .slices = slices};
  run_on(rank, &call, run_push);
}

static void run_epoch(struct zps_command *command, void *ctx) {
  struct rig_rank *const rank = ctx;
  const uint32_t epoch = ((struct call *)command)->number;
  rig_inbox_set_epoch(&rank->inbox, epoch);
  zps_link_set_epoch(rank->link, epoch);
}

void rig_epoch(struct rig_rank *rank, uint32_t epoch) {
  struct call call = {.number = epoch};
  run_on(rank, &call, run_epoch);
}

static void run_gives(struct zps_command *command, void *ctx) {
  ((struct rig_rank *)ctx)->gives = ((struct call *)command)->number;
}

void rig_gives(struct rig_rank *rank, bool gives) {
  struct call call = {.number = gives};
  run_on(rank, &call, run_gives);
}

static void run_overwrites(struct zps_command *command, void *ctx) {
  ((struct rig_rank *)ctx)->overwrites = ((struct call *)command)->number;
}

void rig_overwrites(struct rig_rank *rank, bool overwrites) {
  struct call call = {.number = overwrites};
  run_on(rank, &call, run_overwrites);
}

static void run_send(struct zps_command *command, void *ctx) {
  struct call *call = (struct call *)command;
  struct rig_rank *rank = ctx;
  RIG_CHECK(zps_link_send(rank->link, call->frame) == ZPS_OK);
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
