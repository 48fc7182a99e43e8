/* What servers and other ranks say to a rank: all frames that are made by hand here. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/must.h"
#include "tests/fuzz/worker_scene.h"

static _Alignas(64) uint8_t arenas[MEMBERS][ARENA_BYTES];

unsigned input_next(struct input *input) {
  return input->at < input->end ? *input->at++ : 0;
}

/* ---- gradients ---- */

/* Whole numbers above zero, so that sums are exact, and none of their rows vanishes. */
float scene_value(uint32_t rank, uint64_t step, uint32_t i) {
  const uint32_t row = i / scene.width;
  return (row * 7 + rank * 3 + step) % 3 == 0 ? (float)(1 + (i + rank * 10 + step) % 50) : 0;
}

float scene_sum(uint64_t step, uint32_t i) {
  float sum = 0;
  for (uint32_t r = 0; r < scene.world; r++) sum += scene_value(r, step, i);
  return sum;
}

/* ---- what the rank says ---- */

static void on_frame(struct peer *peer, const struct zps_frame *frame) {
  struct member *const member = peer->ctx;
  const uint8_t type = frame->header.type;
  if (type == ZPS_FRAME_ABORT) must(frame->u.abort.code != ZPS_OK);
  if (type == ZPS_FRAME_CREDIT || type == ZPS_FRAME_ABORT || type == ZPS_FRAME_DONE) return;
  if (member->is_rank) {
    must(type == ZPS_FRAME_PEER);
    return;
  }
  must(type == ZPS_FRAME_PUSH || type == ZPS_FRAME_GIVE || type == ZPS_FRAME_PULL || type == ZPS_FRAME_SEEK);
  if (type != ZPS_FRAME_SEEK) return;
  member->seek = frame->u.round.seek;
  member->seek_step = frame->u.round.step;
  member->seek_age = frame->u.round.age;
  member->seek_age_max = frame->u.round.age_max;
}

void member_open(uint32_t i) {
  struct member *const member = &scene.members[i];
  *member = (struct member){.is_rank = i >= SERVERS, .number = i < SERVERS ? i : i - SERVERS + 1};
  peer_open(&member->peer);
  member->peer.ctx = member;
  member->peer.on_frame = on_frame;
  must(zps_net_mem_register(member->peer.net, arenas[i], ARENA_BYTES, &member->memory, NULL) == ZPS_OK);
}

/* ---- frames ---- */

struct list {
  uint32_t nnz;
  size_t len;
  _Alignas(8) uint8_t bytes[ROWS_MAX * (WIDTH_MAX * sizeof(float) + sizeof(uint32_t))];
};

/* Values, then indices, of rows that are not zero: of partition `p` of the sum of a step, or all rows of a rank's. */
static void list_rows(const struct zps_partition *part, uint32_t p, uint32_t rank, uint64_t step, struct list *list) {
  const uint32_t n = zps_partition_size(part, p), width = scene.width;
  uint32_t indices[ROWS_MAX];
  list->nnz = 0;
  list->len = 0;
  for (uint32_t local = 0; local < n; local++) {
    const uint32_t row = (uint32_t)zps_partition_row(part, p, local);
    float values[WIDTH_MAX] = {0};
    bool any = false;
    for (uint32_t w = 0; w < width; w++) {
      values[w] = rank == 0 ? scene_sum(step, row * width + w) : scene_value(rank, step, row * width + w);
      any |= values[w] != 0;
    }
    if (!any) continue;
    indices[list->nnz++] = local;
    memcpy(list->bytes + list->len, values, width * sizeof(float));
    list->len += width * sizeof(float);
  }
  memcpy(list->bytes + list->len, indices, list->nnz * sizeof indices[0]);
  list->len += list->nnz * sizeof indices[0];
}

static void expose(struct member *member, struct zps_slice *slice) {
  if (slice->len_bytes == 0 || member->used_bytes + slice->len_bytes > ARENA_BYTES) return;
  memcpy((uint8_t *)member->memory.base + member->used_bytes, slice->data, slice->len_bytes);
  slice->is_inline = false;
  slice->addr = member->memory.addr + member->used_bytes;
  slice->key = member->memory.key;
  slice->data = NULL;
  member->used_bytes += (slice->len_bytes + 63) & ~63ull;
}

/* One member of the frame is another than it should be. */
static void spoil(struct zps_frame_round *body, unsigned how, unsigned by) {
  struct zps_slice *const slice = &body->slices[by % body->n_slices];
  switch (how % 10) {
    case 0:
      slice->partition += by;
      break;
    case 1:
      slice->nnz += by;
      break;
    case 2:
      slice->codec = by % ZPS_WIRE_CODECS;
      break;
    case 3:
      slice->n_more = slice->is_inline ? by : 0;
      break;
    case 4:
      slice->addr += by;
      slice->key += by >> 4;
      break;
    case 5:
      slice->len_bytes = slice->len_bytes > by ? slice->len_bytes - by : 0;
      if (slice->len_bytes == 0) slice->is_inline = true;
      break;
    case 6:
      body->n_absent = by;
      break;
    case 7:
      body->step += by & 3;
      body->tensor += by >> 2;
      break;
    case 8:
      body->seek += by & 3;
      body->age += by >> 2;
      body->age_max = body->age;
      break;
    default:
      if (!slice->is_inline)
        slice->sum = by;
      else if (slice->len_bytes > 0)
        ((uint8_t *)(uintptr_t)slice->data)[by % slice->len_bytes] ^= 0x11;
  }
}

static void note_lie(uint32_t tensor, uint64_t step) {
  if (step < STEPS && (tensor == SERVED_TENSOR || tensor == PEER_TENSOR))
    scene.has_lied[tensor == PEER_TENSOR][step] = true;
}

static void send_round(struct member *member, uint8_t type, struct zps_frame *frame) {
  frame->header.type = type;
  peer_send(&member->peer, frame);
}

static void fill_slice(struct member *member, unsigned bits, uint32_t p, const struct list *list,
                       struct zps_frame_round *body) {
  struct zps_slice *const slice = &body->slices[body->n_slices++];
  *slice = (struct zps_slice){.partition = p,
                              .codec = ZPS_CODEC_COO,
                              .is_inline = true,
                              .nnz = list->nnz,
                              .len_bytes = list->len,
                              .data = list->bytes};
  if (bits & 1) expose(member, slice);
}

/* Of a sum these partitions that are the server's. */
static void fill_sum(struct member *member, unsigned bits, uint64_t step, struct zps_frame_round *body) {
  static struct list lists[PARTS_MAX];
  const struct zps_partition *const part = &scene.tensors[0].part;
  for (uint32_t p = 0; p < part->n_parts; p++) {
    if (scene.owners[p] != member->number || !(bits >> (4 + p) & 1)) continue;
    list_rows(part, p, 0, step, &lists[p]);
    fill_slice(member, bits, p, &lists[p], body);
  }
}

void member_answer(struct input *input, bool is_spoilt) {
  static struct zps_frame frame;
  static struct list list;
  const unsigned who = input_next(input), bits = input_next(input);
  struct member *const member = &scene.members[who % MEMBERS];
  const bool finds = !member->is_rank && bits & 2;
  struct zps_frame_round *const body = &frame.u.round;
  zps_frame_round_init(body);
  body->tensor = member->is_rank ? PEER_TENSOR : SERVED_TENSOR;
  body->step = who / MEMBERS % STEPS;
  if (finds) {
    body->seek = member->seek;
    body->step = member->seek_step;
    body->age = body->age_max = bits & 4 ? member->seek_age_max : member->seek_age;
  }
  if (member->is_rank) {
    list_rows(&scene.tensors[1].part, 0, member->number, body->step, &list);
    fill_slice(member, bits, 0, &list, body);
  } else {
    fill_sum(member, bits, body->step - body->age, body);
  }
  if (body->n_slices == 0) return;
  note_lie(is_spoilt ? body->tensor : 0, body->step);
  if (is_spoilt) spoil(body, input_next(input), input_next(input));
  note_lie(is_spoilt ? body->tensor : 0, body->step);
  if (finds) body->age_max = 0;
  send_round(member, member->is_rank ? ZPS_FRAME_PEER : finds ? ZPS_FRAME_FOUND : ZPS_FRAME_RESULT, &frame);
}

void member_say(struct input *input) {
  static const zps_err_t codes[] = {ZPS_ERR_CANCELED, ZPS_ERR_MISSING, ZPS_ERR_NOMEM, ZPS_ERR_PEER_LOST,
                                    ZPS_ERR_BUSY,     ZPS_ERR_QUOTA,   ZPS_ERR_STALE, ZPS_ERR_SERVER_LOST};
  static struct zps_frame frame;
  const unsigned who = input_next(input), bits = input_next(input);
  struct member *const member = &scene.members[who % MEMBERS];
  const uint32_t tensor = member->is_rank ? PEER_TENSOR : SERVED_TENSOR;
  const uint64_t step = who / MEMBERS % STEPS;
  frame.header.type = bits & 8 ? ZPS_FRAME_ABORT : ZPS_FRAME_DONE;
  if (!member->is_rank) frame.header.type = bits & 8 ? ZPS_FRAME_ABORT : bits & 16 ? ZPS_FRAME_MISSED : ZPS_FRAME_TAKEN;
  if (frame.header.type == ZPS_FRAME_DONE || frame.header.type == ZPS_FRAME_TAKEN) {
    frame.u.done = (struct zps_frame_done){.tensor = tensor, .step = step};
  } else {
    zps_frame_abort_init(&frame.u.abort);
    frame.u.abort.tensor = tensor;
    frame.u.abort.step = frame.header.type == ZPS_FRAME_MISSED ? member->seek_step : step;
    frame.u.abort.seek = frame.header.type == ZPS_FRAME_MISSED ? member->seek + (bits >> 7) : 0;
    frame.u.abort.code = codes[bits & 7];
    frame.u.abort.n_ranks = bits >> 5 & 1;
    frame.u.abort.ranks[0] = bits >> 6;
    strcpy(frame.u.abort.text, bits & 64 ? "so be it" : "");
  }
  peer_send(&member->peer, &frame);
}

void member_say_body(struct input *input) {
  static struct zps_frame frame;
  const unsigned who = input_next(input), type = input_next(input), n = input_next(input);
  struct member *const member = &scene.members[who % MEMBERS];
  const size_t left = (size_t)(input->end - input->at), len = n < left ? n : left;
  const uint8_t *const bytes = input->at;
  input->at += len;
  switch (who / MEMBERS % 4) {
    case 0:
    case 1:
      if (!peer_send_body(&member->peer, (uint8_t)type, bytes, len, &frame)) return;
      if (type == ZPS_FRAME_RESULT || type == ZPS_FRAME_FOUND || type == ZPS_FRAME_PEER)
        note_lie(frame.u.round.tensor, frame.u.round.step);
      break;
    case 2:
      frame = (struct zps_frame){.header = {.type = ZPS_FRAME_DONE,
                                            .job = member->peer.job,
                                            .epoch = member->peer.epoch + (type & 1),
                                            .src = type >> 1,
                                            .tag = n}};
      peer_send_pair(&member->peer, &frame);
      break;
    default:
      if (type & 1)
        peer_send_sealed(&member->peer, bytes, len, member->peer.tx_seq + (type >> 4));
      else
        peer_send_raw(&member->peer, bytes, len);
  }
}
