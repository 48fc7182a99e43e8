#include "tests/unit/worker/peer/peer_rig.h"

#include <stdio.h>

static void on_frame(struct fake *fake, struct fake_frame *frame);

/* ------------------------------------------------------------ life */

void peer_open(struct peer_rig *rig, const struct peer_config *config) {
  assert_true(config->rows <= PEER_ROWS_MAX && config->worker.world > 0);
  memset(rig, 0, sizeof *rig);
  rig_open(&rig->worker, &config->worker);
  rig->peer = (struct zps_peer_tensor){.scheme = config->scheme,
                                       .plan = {.n = config->worker.world,
                                                .me = config->worker.rank,
                                                .rows = config->rows,
                                                .width = PEER_WIDTH,
                                                .hosts = config->hosts,
                                                .chunks = 1}};
  if (config->ranks) {
    rig->peer.plan.n = config->n_ranks;
    rig->peer.plan.ranks = config->ranks;
    for (rig->peer.plan.me = 0; config->ranks[rig->peer.plan.me] != config->worker.rank; rig->peer.plan.me++) continue;
  }
  rig->tensor = (struct zps_round_tensor){.job = "run",
                                          .name = "t",
                                          .id = PEER_TENSOR,
                                          .rounds = &rig->worker.rounds,
                                          .shape = {config->rows, PEER_WIDTH, ZPS_DTYPE_F32},
                                          .width = PEER_WIDTH,
                                          .dtype = ZPS_DTYPE_F32,
                                          .op = config->op ? config->op : ZPS_OP_SUM,
                                          .codec = ZPS_CODEC_AUTO,
                                          .value_codec = ZPS_VALUES_RAW,
                                          .scheme = config->scheme->name,
                                          .ops = &zps_peer_ops,
                                          .peer = &rig->peer,
                                          .works_in_host = true,
                                          .sends_zeros = config->scheme->sends_zeros};
  assert_int_equal(zps_row_arrays_pool_create(&rig->tensor.arrays), ZPS_OK);
  assert_int_equal(zps_partition_init(&rig->tensor.part, config->rows, 1, 0, 1, NULL), ZPS_OK);
  if (config->scheme->open) assert_int_equal(config->scheme->open(&rig->peer.plan, &rig->peer.state), ZPS_OK);
  for (uint32_t r = 0; r < config->worker.world; r++) {
    rig->worker.ranks[r].ctx = rig;
    rig->worker.ranks[r].on_frame = on_frame;
  }
}

void peer_close(struct peer_rig *rig) {
  if (!rig->worker.plane.engine) return;
  rig_close(&rig->worker);
  if (rig->peer.state) rig->peer.scheme->close(rig->peer.state);
  zps_row_arrays_pool_close(rig->tensor.arrays);
  for (uint32_t r = 0; r < RIG_FAKES_MAX; r++) {
    while (rig->messages[r]) {
      struct peer_message *message = rig->messages[r];
      rig->messages[r] = message->next;
      free(message);
    }
  }
}

/* ------------------------------------------------------------ gradients */

void peer_draw(struct peer_rig *rig, unsigned every) {
  const uint32_t me = rig->worker.rank;
  for (uint64_t i = 0; i < rig->tensor.part.rows * PEER_WIDTH; i++) {
    const uint64_t row = i / PEER_WIDTH;
    for (uint32_t r = 0; r < rig->worker.world; r++) {
      float *const values = r == me ? rig->in : rig->theirs[r];
      values[i] = (row + r) % every == 0 ? (float)(1 + r * 100 + i % 100) : 0;
    }
    rig->out[i] = -1;
  }
}

void peer_begin(struct peer_rig *rig, struct rig_request *request, uint64_t step, uint64_t timeout_ms) {
  const zenps_grad_t in = {.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig->in};
  void *const values = request->out.values ? request->out.values : rig->out;
  request->out = in;
  request->out.values = values;
  assert_int_equal(rig_begin(&rig->worker, request, &rig->tensor, step, timeout_ms, &in), ZPS_OK);
}

void peer_check(const struct peer_rig *rig) {
  for (uint64_t i = 0; i < rig->tensor.part.rows * PEER_WIDTH; i++) {
    float sum = rig->in[i];
    for (uint32_t k = 0; k < rig->peer.plan.n; k++) {
      const uint32_t r = zps_peer_rank(&rig->peer.plan, k);
      sum += r == rig->worker.rank ? 0 : rig->theirs[r][i];
    }
    if (rig->out[i] != sum)
      fail_msg("value %llu is %g, not %g", (unsigned long long)i, (double)rig->out[i], (double)sum);
  }
}

/* ------------------------------------------------------------ said */

void peer_say_slice(struct peer_rig *rig, uint32_t r, uint64_t step, const struct zps_slice *slice) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_PEER,
                            .u.round = {.tensor = PEER_TENSOR, .step = step, .n_slices = 1, .slices = {*slice}}};
  fake_send(&rig->worker.ranks[r], &frame);
}

static void say(struct peer_rig *rig, uint32_t r, uint64_t step, enum peer_how how, struct zps_slice *slice,
                const void *bytes) {
  slice->is_inline = how == PEER_INLINE;
  slice->data = bytes;
  if (how == PEER_READ) fake_expose(&rig->worker.ranks[r], bytes, slice->len_bytes, slice);
  peer_say_slice(rig, r, step, slice);
}

void peer_say(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag, enum peer_how how, uint64_t lo,
              uint64_t hi, const float *values) {
  const size_t row_bytes = PEER_WIDTH * sizeof(float);
  struct zps_slice slice = {.partition = tag, .codec = ZPS_CODEC_COO};
  const bool was_at_work = fake_at_work;
  fake_at_work = true;
  uint8_t *const coo = malloc((hi - lo + 1) * (row_bytes + sizeof(uint32_t)));
  assert_non_null(coo);
  for (uint64_t i = 0; i < hi - lo; i++) {
    if (values[i * PEER_WIDTH] != 0) memcpy(coo + slice.nnz++ * row_bytes, &values[i * PEER_WIDTH], row_bytes);
  }
  uint8_t *at = coo + slice.nnz * row_bytes;
  for (uint32_t i = 0; i < hi - lo; i++) {
    if (values[(size_t)i * PEER_WIDTH] == 0) continue;
    memcpy(at, &i, sizeof i);
    at += sizeof i;
  }
  slice.len_bytes = (uint64_t)(at - coo);
  say(rig, r, step, how, &slice, coo);
  free(coo);
  fake_at_work = was_at_work;
}

void peer_say_all(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag, enum peer_how how, uint64_t lo,
                  uint64_t hi, const float *values) {
  struct zps_slice slice = {.partition = tag,
                            .codec = ZPS_CODEC_HOLES,
                            .nnz = (uint32_t)(hi - lo),
                            .len_bytes = (hi - lo) * PEER_WIDTH * sizeof(float)};
  say(rig, r, step, how, &slice, values);
}

/* ------------------------------------------------------------ heard */

static void keep(struct peer_rig *rig, uint32_t r, uint64_t step, const struct zps_slice *slice) {
  const size_t len = slice->is_inline ? (size_t)slice->len_bytes : 0;
  struct peer_message *const message = malloc(sizeof *message + len), **at = &rig->messages[r];
  assert_non_null(message);
  *message = (struct peer_message){.step = step, .slice = *slice};
  message->slice.data = message->bytes;
  if (len > 0) memcpy(message->bytes, slice->data, len);
  while (*at) at = &(*at)->next;
  *at = message;
}

static void on_frame(struct fake *fake, struct fake_frame *frame) {
  const struct zps_frame_round *messages = &frame->frame.u.round;
  if (frame->frame.header.type != ZPS_FRAME_PEER) {
    fake_keep(fake, frame);
    return;
  }
  for (uint32_t i = 0; i < messages->n_slices; i++) keep(fake->ctx, fake->self, messages->step, &messages->slices[i]);
  free(frame);
}

bool peer_has(const struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag) {
  const struct peer_message *message = rig->messages[r];
  while (message && (message->step != step || message->slice.partition != tag)) message = message->next;
  return message != NULL;
}

struct peer_message *peer_take(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag) {
  UNTIL(peer_has(rig, r, step, tag));
  struct peer_message **at = &rig->messages[r];
  while ((*at)->step != step || (*at)->slice.partition != tag) at = &(*at)->next;
  struct peer_message *const message = *at;
  *at = message->next;
  return message;
}

void peer_expect(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag, uint64_t lo, uint64_t hi,
                 const float *values) {
  struct peer_message *const message = peer_take(rig, r, step, tag);
  const struct zps_slice *slice = &message->slice;
  struct zps_slice_view view;
  struct zps_error error = {.text = ""};
  struct zps_index_cursor cursor;
  void *const payload = aligned_alloc(64, (slice->len_bytes + 64) & ~63ull);
  assert_non_null(payload);
  assert_int_equal(fake_read(&rig->worker.ranks[r], slice, payload), ZPS_OK);
  if (zps_slice_view_init(&view, slice->codec, (uint32_t)(hi - lo), slice->nnz, PEER_WIDTH, ZPS_DTYPE_F32,
                          ZPS_VALUES_RAW, payload, slice->len_bytes, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  zps_index_cursor_init(&cursor, &view);
  uint64_t next = 0; /* row that is looked at next; those that are not in the message are zero */
  for (uint32_t z = 0, index; z <= slice->nnz; z++, next++) {
    const bool is_end = zps_index_cursor_read(&cursor, UINT32_MAX, &index, 1) == 0;
    for (; next < (is_end ? hi - lo : index); next++) assert_true(values[next * PEER_WIDTH] == 0);
    if (!is_end)
      assert_memory_equal((const float *)view.values + (size_t)z * PEER_WIDTH, &values[next * PEER_WIDTH],
                          PEER_WIDTH * sizeof(float));
  }
  free(payload);
  free(message);
}
