/* Results on their way to the ranks: small ones inline, several to a frame; large ones as memory for them to read. */
#include "server/shard/publish.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/moment.h"
#include "common/codec/join.h"
#include "server/shard/job.h"
#include "server/shard/quorum.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

void zps_publish_part(struct zps_shard_round *round, uint32_t part) {
  struct zps_shard *shard = round->tensor->job->shard;
  if (round->published_ns == 0) round->published_ns = zps_clock_ns();
  round->ready[round->n_ready++] = part;
  if (round->machine->state >= ZPS_SHARD_PUBLISHED) zps_sums_add(round->tensor, round);
  if (round->is_ready) return;
  round->is_ready = true;
  round->next_ready = shard->ready;
  shard->ready = round;
}

/* Each server begins with another rank, so that not all of them answer the same one first. */
static void send_frame(const struct zps_outgoing *out, struct zps_frame *frame, uint64_t payload_bytes) {
  struct zps_tensor *tensor = out->round->tensor;
  struct zps_job *job = tensor->job;
  if (out->rank != ZPS_SHARD_NO_RANK) {
    zps_member_send(&job->members[out->rank], frame);
    tensor->sums.bytes_out += payload_bytes;
    return;
  }
  for (uint32_t i = 1; i <= job->world; i++) {
    const uint32_t rank = (uint32_t)(((uint64_t)job->server + i) % job->world);
    if (!zps_shard_machine_gets_all(out->round->machine, rank)) continue;
    zps_member_send(&job->members[rank], frame);
    tensor->sums.bytes_out += payload_bytes;
    ZPS_MOMENT("sum told to one rank");
  }
}

bool zps_publish_is_small(const struct zps_shard_sum *sum) {
  return sum->is_inline;
}

static struct zps_slice single(const struct zps_outgoing *out, uint32_t part) {
  const struct zps_shard_sum *sum = out->sums[part];
  const bool is_inline = zps_publish_is_small(sum);
  return (struct zps_slice){.partition = out->round->tensor->partitions[part],
                            .codec = (uint8_t)sum->codec,
                            .is_inline = is_inline,
                            .nnz = sum->nnz,
                            .len_bytes = sum->len_bytes,
                            .addr = is_inline ? 0 : sum->buf.addr,
                            .key = is_inline ? 0 : sum->buf.key,
                            .more = is_inline ? (struct zps_net_keys){.n = 0} : sum->buf.more,
                            .sum = is_inline ? 0 : sum->checksum,
                            .data = is_inline ? sum->buf.data : NULL};
}

/* How many of the parts from `parts` on may be joined, with at most `room` bytes if they are not. */
static uint32_t count_joinable(const struct zps_outgoing *out, const uint32_t *parts, uint32_t n, uint64_t room,
                               uint64_t *bytes_p) {
  const struct zps_tensor *tensor = out->round->tensor;
  uint64_t m = 0, nnz = 0;
  *bytes_p = 0;
  for (uint32_t i = 0; i < n; i++) {
    const struct zps_shard_sum *sum = out->sums[parts[i]];
    m += tensor->sizes[parts[i]];
    nnz += sum->nnz;
    if (parts[i] != parts[0] + i || sum->len_bytes > room - *bytes_p) return i;
    if (!zps_join_fits(m, nnz, tensor->width, tensor->dtype, tensor->value_codec)) return i;
    *bytes_p += sum->len_bytes;
  }
  return n;
}

/* The next slice: of several partitions where that takes fewer bytes. Returns how many it is of. */
static uint32_t next_slice(const struct zps_outgoing *out, const uint32_t *parts, uint32_t n, uint8_t *joined,
                           uint64_t room, struct zps_slice *slice) {
  const struct zps_tensor *tensor = out->round->tensor;
  uint64_t bytes;
  *slice = single(out, parts[0]);
  const uint32_t n_joinable = count_joinable(out, parts, n, room, &bytes);
  if (n_joinable < 2) return 1;
  struct zps_joined join;
  zps_join_init(&join, tensor->width, tensor->dtype, tensor->value_codec);
  for (uint32_t i = 0; i < n_joinable; i++) {
    const struct zps_slice_view view = zps_shard_sum_view(tensor, parts[i], out->sums[parts[i]]);
    zps_join_add(&join, &view);
  }
  enum zps_codec codec;
  if (!zps_join_write(&join, tensor->codecs, joined, bytes, &codec, &slice->len_bytes)) return 1;
  slice->codec = (uint8_t)codec;
  slice->n_more = n_joinable - 1;
  slice->nnz = join.z;
  slice->data = joined;
  return n_joinable;
}

static int compare_parts(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

void zps_publish_send(const struct zps_outgoing *out) {
  uint8_t joined[ZPS_WIRE_INLINE_MAX];
  uint32_t sent = 0;
  qsort(out->parts, out->n_parts, sizeof out->parts[0], compare_parts);
  while (sent < out->n_parts) {
    struct zps_frame frame = {.header.type = out->is_found ? ZPS_FRAME_FOUND : ZPS_FRAME_RESULT};
    struct zps_frame_round *body = &frame.u.round;
    uint64_t inline_bytes = 0, payload_bytes = 0;
    body->tensor = out->round->tensor->id;
    body->step = out->step;
    body->n_absent = out->round->n_absent;
    body->seek = out->seek;
    body->age = out->age;
    while (sent < out->n_parts && body->n_slices < ZPS_WIRE_SLICES_MAX) {
      struct zps_slice *slice = &body->slices[body->n_slices];
      const uint64_t room = ZPS_WIRE_INLINE_MAX - inline_bytes;
      const struct zps_shard_sum *sum = out->sums[out->parts[sent]];
      if ((zps_publish_is_small(sum) ? sum->len_bytes : sum->buf.more.n * 10u) > room) break;
      sent += next_slice(out, out->parts + sent, out->n_parts - sent, joined + inline_bytes, room, slice);
      body->n_slices++;
      inline_bytes += zps_slice_room(slice);
      payload_bytes += slice->len_bytes;
    }
    send_frame(out, &frame, payload_bytes);
  }
}

static void publish(struct zps_shard_round *round) {
  zps_publish_send(&(struct zps_outgoing){.round = round,
                                          .step = round->machine->config.step,
                                          .rank = ZPS_SHARD_NO_RANK,
                                          .sums = round->sums,
                                          .parts = round->ready,
                                          .n_parts = round->n_ready});
  const uint32_t n_ready = round->n_ready;
  round->n_ready = 0;
  if (!zps_shard_machine_over(round->machine)) zps_quorum_tell(round);
  for (uint32_t i = 0; i < n_ready && !zps_shard_machine_keeps(round->machine); i++) {
    struct zps_shard_sum **sum_p = &round->sums[round->ready[i]];
    if (*sum_p && zps_publish_is_small(*sum_p)) zps_shard_sum_unref(sum_p);
  }
}

void zps_publish_forget(struct zps_shard_round *round) {
  if (!round->is_ready) return;
  struct zps_shard_round **link = &round->tensor->job->shard->ready;
  while (*link != round) link = &(*link)->next_ready;
  *link = round->next_ready;
  round->is_ready = false;
}

void zps_publish_all(struct zps_shard_round *round) {
  zps_publish_forget(round);
  publish(round);
}

/* While the pool makes sums, this is called again soon. A sum that ranks have to read is not kept: that takes longer.
 */
static bool is_kept(const struct zps_shard_round *round) {
  if (round->n_small == 0 || round->tensor->job->shard->n_reducing == 0) return false;
  for (uint32_t i = 0; i < round->n_ready; i++)
    if (!zps_publish_is_small(round->sums[round->ready[i]])) return false;
  return true;
}

void zps_publish_flush(struct zps_shard *shard) {
  struct zps_shard_round **link = &shard->ready;
  for (struct zps_shard_round *round; (round = *link) != NULL;) {
    if (is_kept(round)) {
      link = &round->next_ready;
      continue;
    }
    *link = round->next_ready;
    round->is_ready = false;
    publish(round);
  }
}
