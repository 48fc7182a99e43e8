#include "tests/fuzz/shard_ranks.h"

#include <stdio.h>
#include <string.h>

#include "common/codec/runs.h"
#include "tests/fuzz/must.h"

struct scene scene;

/* A sum that a rank reads. */
struct fetch {
  struct zps_net_read read;
  struct peer *peer;
  struct zps_slice slice;
  uint32_t tensor, epoch;
  uint64_t step;
  bool is_found, is_used;
  uint8_t bytes[MODEL_BYTES_MAX];
};

static _Alignas(64) uint8_t arenas[MODEL_RANKS][ARENA_BYTES];
static struct fetch fetches[MODEL_RANKS][FETCHES];

unsigned input_next(struct input *input) {
  return input->at < input->end ? *input->at++ : 0;
}

/* ---- what ranks hear ---- */

static struct model_tensor *find_tensor(uint32_t id) {
  for (unsigned i = 0; i < MODEL_TENSORS; i++)
    if (scene.tensors[i].is_open && scene.tensors[i].spec.tensor == id) return &scene.tensors[i];
  return NULL;
}

static void taint(uint32_t id, uint64_t step) {
  struct model_tensor *const tensor = find_tensor(id);
  if (tensor && step < MODEL_STEPS) tensor->steps[step].tainted = true;
}

/* It has the sum, unless the server has taken it back meanwhile. */
static void fetched(struct zps_net_read *read, zps_err_t code) {
  struct fetch *const fetch = read->ctx;
  const struct model_tensor *tensor = find_tensor(fetch->tensor);
  fetch->is_used = false;
  if (code == ZPS_OK && tensor && fetch->epoch == fetch->peer->epoch && fetch->step != UINT64_MAX)
    model_check(tensor, fetch->step, ((struct rank *)fetch->peer->ctx)->number, fetch->is_found, &fetch->slice,
                fetch->bytes);
}

static void fetch(struct rank *rank, const struct model_tensor *tensor, uint64_t step, bool is_found,
                  const struct zps_slice *slice) {
  struct fetch *one = rank->fetches;
  while (one < rank->fetches + FETCHES && one->is_used) one++;
  if (one == rank->fetches + FETCHES || !rank->peer.to) return;
  must(slice->len_bytes <= sizeof one->bytes);
  *one = (struct fetch){.peer = &rank->peer,
                        .slice = *slice,
                        .tensor = tensor->spec.tensor,
                        .epoch = rank->peer.epoch,
                        .step = step,
                        .is_found = is_found,
                        .is_used = true};
  one->read = (struct zps_net_read){.local = one->bytes,
                                    .mem = &rank->fetched,
                                    .len = slice->len_bytes,
                                    .addr = slice->addr,
                                    .key = slice->key,
                                    .done = fetched,
                                    .ctx = one};
  must(zps_net_read(rank->peer.to, &one->read) == ZPS_OK);
}

static void forget_fetches(struct rank *rank, uint32_t tensor, uint64_t step) {
  for (unsigned i = 0; i < FETCHES; i++)
    if (rank->fetches[i].is_used && rank->fetches[i].tensor == tensor && rank->fetches[i].step == step)
      rank->fetches[i].step = UINT64_MAX;
}

static void on_frame(struct peer *peer, const struct zps_frame *frame) {
  struct rank *const rank = peer->ctx;
  const struct zps_frame_round *body = &frame->u.round;
  const struct model_tensor *tensor;
  switch (frame->header.type) {
    case ZPS_FRAME_RESULT:
    case ZPS_FRAME_FOUND:
      tensor = find_tensor(body->tensor);
      if (!tensor || scene.epoch != peer->epoch) return; /* it has another map than the model, which is ahead */
      for (uint32_t i = 0; i < body->n_slices; i++) {
        const bool is_found = frame->header.type == ZPS_FRAME_FOUND;
        if (body->slices[i].is_inline)
          model_check(tensor, body->step - body->age, rank->number, is_found, &body->slices[i], body->slices[i].data);
        else
          fetch(rank, tensor, body->step - body->age, is_found, &body->slices[i]);
      }
      break;
    case ZPS_FRAME_ABORT:
      must(frame->u.abort.code != ZPS_OK && frame->u.abort.text[0]);
      forget_fetches(rank, frame->u.abort.tensor, frame->u.abort.step);
      break;
    case ZPS_FRAME_MISSED:
      must(frame->u.abort.code != ZPS_OK && frame->u.abort.text[0]);
      break;
    case ZPS_FRAME_TAKEN:
    case ZPS_FRAME_CREDIT:
      break;
    default:
      abort(); /* servers send no other */
  }
}

void rank_open(uint32_t number) {
  struct rank *const rank = &scene.ranks[number];
  *rank = (struct rank){.number = number, .fetches = fetches[number], .is_honest = true};
  peer_open(&rank->peer);
  rank->peer.ctx = rank;
  rank->peer.on_frame = on_frame;
  for (unsigned i = 0; i < FETCHES; i++) fetches[number][i].is_used = false;
  must(zps_net_mem_register(rank->peer.net, arenas[number], ARENA_BYTES, &rank->memory, NULL) == ZPS_OK);
  must(zps_net_mem_register(rank->peer.net, fetches[number], sizeof fetches[number], &rank->fetched, NULL) == ZPS_OK);
}

/* ---- what ranks say ---- */

/* The low bits say rank, tensor and step. */
struct address {
  struct rank *rank;
  struct model_tensor *tensor;
  uint64_t step;
};

static struct address address_of(unsigned byte) {
  return (struct address){.rank = &scene.ranks[(byte & 3) % scene.world],
                          .tensor = &scene.tensors[byte >> 2 & 1],
                          .step = (byte >> 3) % MODEL_STEPS};
}

/* In memory that the rank exposes; false: there is no more of it. */
static bool expose(struct rank *rank, struct zps_slice *slice) {
  if (slice->len_bytes == 0 || rank->used_bytes + slice->len_bytes > ARENA_BYTES) return false;
  uint8_t *const at = (uint8_t *)rank->memory.base + rank->used_bytes;
  memcpy(at, slice->data, slice->len_bytes);
  slice->is_inline = false;
  slice->addr = rank->memory.addr + rank->used_bytes;
  slice->key = rank->memory.key;
  slice->data = NULL;
  rank->used_bytes += slice->len_bytes;
  return true;
}

/* Fills in the slices of these partitions; how they travel is up to the bits. */
static void fill(const struct address *to, unsigned parts, unsigned bits, struct zps_frame_round *body) {
  static struct model_slice made[MODEL_PARTS];
  uint64_t inline_bytes = 0;
  for (uint32_t p = 0; p < to->tensor->spec.n_parts; p++) {
    if (!(parts >> p & 1) || !to->tensor->here[p]) continue;
    model_slice(to->tensor, to->step, to->rank->number, p, bits & 2, bits & 4, &made[p]);
    struct zps_slice *slice = &body->slices[body->n_slices];
    *slice = (struct zps_slice){.partition = p,
                                .codec = made[p].codec,
                                .is_inline = true,
                                .is_wide = made[p].is_wide,
                                .nnz = made[p].nnz,
                                .len_bytes = made[p].len_bytes,
                                .data = made[p].bytes};
    const bool fits = inline_bytes + slice->len_bytes <= ZPS_WIRE_INLINE_MAX;
    if ((!fits || bits & 1) && !expose(to->rank, slice) && !fits) continue;
    if (slice->is_inline) inline_bytes += slice->len_bytes;
    body->total_nnz += slice->nnz;
    body->n_slices++;
  }
}

/* One member of the frame is another than it should be; the ways are those in which it can be encoded at all. */
static void spoil(struct zps_frame_round *body, unsigned how, unsigned by) {
  struct zps_slice *const slice = &body->slices[by % body->n_slices];
  switch (how % 8) {
    case 0:
      slice->partition += by;
      break;
    case 1:
      slice->nnz += by;
      body->total_nnz += by;
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
      if (slice->is_inline && slice->len_bytes > 0)
        ((uint8_t *)(uintptr_t)slice->data)[by % slice->len_bytes] ^= (uint8_t)(1 + by);
      break;
    case 7:
      slice->is_wide = !slice->is_wide;
      break;
  }
}

static uint32_t timeout_of(unsigned bits) {
  return 1u << (bits >> 4 & 15);
}

void rank_push(struct input *input, uint8_t type, bool is_spoilt) {
  const struct address to = address_of(input_next(input));
  const unsigned parts = input_next(input), bits = input_next(input);
  struct zps_frame frame = {.header.type = type};
  struct zps_frame_round *body = &frame.u.round;
  *body = (struct zps_frame_round){
      .tensor = to.tensor->spec.tensor, .step = to.step, .timeout_ms = timeout_of(bits), .is_absent = bits & 8};
  if (!to.tensor->is_open) return;
  fill(&to, parts >> 4 ? parts : 15, bits, body);
  if (body->n_slices == 0) return;
  uint32_t sent[MODEL_PARTS], n = body->n_slices;
  for (uint32_t i = 0; i < n; i++) sent[i] = body->slices[i].partition;
  if (is_spoilt) {
    const unsigned how = input_next(input);
    spoil(body, how, input_next(input));
    taint(body->tensor, body->step);
  }
  if (!peer_send(&to.rank->peer, &frame)) return;
  for (uint32_t i = 0; i < n; i++) to.tensor->steps[to.step].ranks[to.rank->number].sent[sent[i]] = true;
  if (type == ZPS_FRAME_PUSH) to.tensor->steps[to.step].ranks[to.rank->number].all = true;
}

/* Rows by a mask, of each partition here: as runs. */
void rank_pull(struct input *input, uint8_t type) {
  static uint8_t runs[MODEL_PARTS][MODEL_ROWS * ZPS_RUN_BYTES_MAX];
  const struct address to = address_of(input_next(input));
  const unsigned pattern = input_next(input), bits = input_next(input);
  struct zps_frame frame = {.header.type = type};
  struct zps_frame_round *body = &frame.u.round;
  *body = (struct zps_frame_round){
      .tensor = to.tensor->spec.tensor, .step = to.step, .timeout_ms = timeout_of(bits), .total_nnz = bits & 1};
  if (!to.tensor->is_open) return;
  if (type == ZPS_FRAME_SEEK) {
    body->seek = bits;
    body->age_max = (uint32_t)((bits >> 1 & 3) < to.step ? bits >> 1 & 3 : to.step);
    body->age = bits & 8 ? body->age_max : 0;
  }
  uint64_t wanted[MODEL_PARTS] = {0};
  for (uint32_t p = 0; p < to.tensor->spec.n_parts; p++) {
    struct zps_slice *slice = &body->slices[body->n_slices];
    uint8_t *at = runs[p];
    uint32_t end = 0;
    if (!to.tensor->here[p]) continue;
    *slice = (struct zps_slice){.partition = p, .codec = ZPS_WIRE_CODEC_RUNS, .is_inline = true, .data = at};
    for (uint32_t row = 0; row < to.tensor->sizes[p]; row++) {
      struct zps_index_run run = {.first = row};
      while (row < to.tensor->sizes[p] && (pattern == 255 || pattern >> (row & 7) & 1)) row++, run.n++;
      if (run.n == 0) continue;
      at = zps_index_run_put(at, end, run);
      end = run.first + run.n;
      slice->nnz += run.n;
      for (uint32_t i = run.first; i < end; i++) wanted[p] |= 1ull << i;
    }
    slice->len_bytes = (uint64_t)(at - runs[p]);
    body->total_nnz += slice->nnz;
    body->n_slices++;
  }
  if (body->n_slices == 0 || !peer_send(&to.rank->peer, &frame) || type == ZPS_FRAME_SEEK) return;
  to.tensor->steps[to.step].ranks[to.rank->number].n_pulls++;
  for (uint32_t p = 0; p < MODEL_PARTS; p++) to.tensor->steps[to.step].ranks[to.rank->number].wanted[p] |= wanted[p];
}

void rank_say(struct input *input, uint8_t type) {
  const unsigned byte = input_next(input);
  const struct address to = address_of(byte);
  struct zps_frame frame = {.header.type = type};
  if (type == ZPS_FRAME_DONE) {
    frame.u.done = (struct zps_frame_done){.tensor = to.tensor->spec.tensor, .step = to.step};
  } else {
    zps_frame_abort_init(&frame.u.abort);
    frame.u.abort.tensor = to.tensor->spec.tensor;
    frame.u.abort.step = to.step;
    frame.u.abort.code = ZPS_ERR_CANCELED;
    if (byte & 64) frame.u.abort.ranks[frame.u.abort.n_ranks++] = byte;
    snprintf(frame.u.abort.text, sizeof frame.u.abort.text, "why");
  }
  peer_send(&to.rank->peer, &frame);
}

/* What no member says, sealed as a member's. */
void rank_say_body(struct input *input) {
  static struct zps_frame frame;
  struct rank *const rank = &scene.ranks[input_next(input) % scene.world];
  const uint8_t type = (uint8_t)(input_next(input) & 15);
  size_t len = input_next(input);
  if (len > (size_t)(input->end - input->at)) len = (size_t)(input->end - input->at);
  if (peer_send_body(&rank->peer, type, input->at, len, &frame) &&
      (frame.header.type == ZPS_FRAME_PUSH || frame.header.type == ZPS_FRAME_GIVE ||
       frame.header.type == ZPS_FRAME_PULL))
    taint(frame.u.round.tensor, frame.u.round.step);
  input->at += len;
}

void rank_say_for_another(struct input *input) {
  const struct address to = address_of(input_next(input));
  const struct peer *const other = &scene.ranks[input_next(input) % scene.world].peer;
  struct zps_frame frame = {.u.done = {.tensor = to.tensor->spec.tensor, .step = to.step}};
  frame.header = (struct zps_frame_header){.type = ZPS_FRAME_DONE,
                                           .job = other->job,
                                           .epoch = other->epoch,
                                           .src = other->self,
                                           .tag = other->tag,
                                           .seq = other->tx_seq};
  if (other != &to.rank->peer) peer_send_pair(&to.rank->peer, &frame);
}

void rank_say_bytes(struct input *input) {
  struct rank *const rank = &scene.ranks[input_next(input) % scene.world];
  const unsigned how = input_next(input);
  size_t len = input_next(input);
  if (len > (size_t)(input->end - input->at)) len = (size_t)(input->end - input->at);
  if (how & 1) {
    for (unsigned i = 0; i < MODEL_TENSORS; i++)
      for (uint64_t step = 0; step < MODEL_STEPS; step++) taint(scene.tensors[i].spec.tensor, step);
    rank->peer.broken = true;
    rank->is_honest = false;
    peer_send_sealed(&rank->peer, input->at, len, rank->peer.tx_seq + (how >> 1 & 7));
  } else {
    peer_send_raw(&rank->peer, input->at, len);
  }
  input->at += len;
}
