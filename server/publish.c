/* Results on their way to the ranks: small ones inline, several to a frame; large ones as memory for them to read. */
#include "server/plane.h"

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/clock.h"
#include "common/base/log.h"

void zps_publish_part(struct zps_live *live, uint32_t part) {
  struct zps_shard *shard = live->tensor->job->shard;
  if (live->published_ns == 0) live->published_ns = zps_clock_ns();
  live->ready[live->n_ready++] = part;
  if (live->round->state >= ZPS_ROUND_PUBLISHED) zps_sums_add(live->tensor, live);
  if (live->is_ready) return;
  live->is_ready = true;
  live->next_ready = shard->ready;
  shard->ready = live;
}

static void send_frame(struct zps_live *live, struct zps_frame *frame, uint64_t payload_bytes) {
  struct zps_tensor *tensor = live->tensor;
  for (uint32_t rank = 0; rank < tensor->job->world; rank++) {
    if (zps_round_rank_gone(live->round, rank)) continue;
    zps_member_send(&tensor->job->members[rank], frame);
    tensor->sums.bytes_out += payload_bytes;
  }
}

static void publish(struct zps_live *live) {
  struct zps_tensor *tensor = live->tensor;
  struct zps_slab *slab = tensor->job->shard->slab;
  uint32_t sent = 0;
  while (sent < live->n_ready) {
    struct zps_frame frame = {.header.type = ZPS_FRAME_RESULT};
    struct zps_frame_round *body = &frame.u.round;
    uint64_t inline_bytes = 0, payload_bytes = 0;
    body->tensor = tensor->id;
    body->step = live->round->config.step;
    const uint32_t first = sent;
    for (; sent < live->n_ready && body->n_slices < ZPS_WIRE_SLICES_MAX; sent++) {
      const struct zps_part_run *run = &live->parts[live->ready[sent]];
      const bool is_inline = run->len_bytes <= ZPS_WIRE_INLINE_MAX;
      const uint64_t more = inline_bytes + (is_inline ? run->len_bytes : 0);
      if (body->n_slices > 0 &&
          (more > ZPS_WIRE_INLINE_MAX || zps_wire_round_bytes(body->n_slices + 1, more) > ZPS_WIRE_FRAME_MAX))
        break;
      inline_bytes = more;
      payload_bytes += run->len_bytes;
      body->slices[body->n_slices++] = (struct zps_slice){.partition = tensor->partitions[live->ready[sent]],
                                                          .codec = run->codec,
                                                          .is_inline = is_inline,
                                                          .nnz = run->nnz,
                                                          .len_bytes = run->len_bytes,
                                                          .addr = is_inline ? 0 : run->result.addr,
                                                          .key = is_inline ? 0 : run->result.key,
                                                          .data = is_inline ? run->result.data : NULL};
    }
    send_frame(live, &frame, payload_bytes);
    for (uint32_t i = first; i < sent; i++) {
      struct zps_part_run *run = &live->parts[live->ready[i]];
      if (run->len_bytes <= ZPS_WIRE_INLINE_MAX) zps_slab_put(slab, &run->result);
    }
  }
  live->n_ready = 0;
}

void zps_publish_flush(struct zps_shard *shard) {
  for (struct zps_live *live; (live = shard->ready) != NULL;) {
    shard->ready = live->next_ready;
    live->is_ready = false;
    publish(live);
  }
}
