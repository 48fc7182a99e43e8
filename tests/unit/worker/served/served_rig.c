#include "tests/unit/worker/served/served_rig.h"

#include <stdio.h>

#include "common/codec/join.h"

static void on_frame(struct fake *fake, struct fake_frame *frame);

/* ------------------------------------------------------------ life */

static void open_device(struct served_rig *rig, const char *library) {
  gpu_ok(zps_worker_device_open(library, 0, &rig->worker.device, &gpu_error));
  zps_worker_device_probe(rig->worker.device, rig->worker.plane.engine);
  rig->gpu.device = rig->worker.device->device;
  gpu_rig_open(&rig->gpu);
}

static void close_device(struct served_rig *rig) {
  while (rig->n_on_device > 0) gpu_free(&rig->gpu, rig->on_device[--rig->n_on_device]);
  rig->gpu.device->ops->event_destroy(rig->gpu.device, rig->gpu.event);
  rig->gpu.device->ops->stream_destroy(rig->gpu.device, rig->gpu.stream);
  zps_worker_device_stop(rig->worker.device);
  zps_worker_device_close(rig->worker.device);
}

void served_open(struct served_rig *rig, const struct served_config *config) {
  struct rig_config worker = config->worker;
  if (worker.n_servers == 0) worker.n_servers = 1;
  assert_true(config->rows <= SERVED_ROWS_MAX && config->n_parts <= RIG_PARTS_MAX);
  memset(rig, 0, sizeof *rig);
  rig_open(&rig->worker, &worker);
  if (config->device) open_device(rig, config->device);
  rig->tensor = (struct zps_round_tensor){.job = "run",
                                          .name = "t",
                                          .id = 5,
                                          .rounds = &rig->worker.rounds,
                                          .shape = {config->rows, SERVED_WIDTH, ZPS_DTYPE_F32},
                                          .width = SERVED_WIDTH,
                                          .dtype = ZPS_DTYPE_F32,
                                          .op = ZPS_OP_SUM,
                                          .codec = config->codec ? config->codec : ZPS_CODEC_AUTO,
                                          .value_codec = ZPS_VALUES_RAW,
                                          .owners = rig->owners,
                                          .ops = &zps_served_ops,
                                          .served = zps_served_kind_find(config->scheme ? config->scheme : "balanced")};
  rig->tensor.scheme = rig->tensor.served->name;
  assert_int_equal(zps_row_arrays_pool_create(&rig->tensor.arrays), ZPS_OK);
  assert_int_equal(zps_partition_init(&rig->tensor.part, config->rows, config->n_parts, 0, 1, NULL), ZPS_OK);
  for (uint32_t p = 0; p < config->n_parts; p++) rig->owners[p] = p % worker.n_servers;
  for (uint32_t s = 0; s < worker.n_servers; s++) {
    rig->servers[s].rig = rig;
    rig->at[s] = &rig->worker.servers[s];
    rig->at[s]->ctx = &rig->servers[s];
    rig->at[s]->on_frame = on_frame;
  }
}

void served_close(struct served_rig *rig) {
  if (!rig->worker.plane.engine) return;
  rig_close(&rig->worker);
  if (rig->worker.device) close_device(rig);
  zps_row_arrays_pool_close(rig->tensor.arrays);
}

/* ------------------------------------------------------------ gradients */

void served_draw(struct served_rig *rig, unsigned every) {
  for (uint64_t row = 0; row < rig->tensor.part.rows; row++) {
    for (uint64_t i = row * SERVED_WIDTH; i < (row + 1) * SERVED_WIDTH; i++) {
      rig->in[i] = row % every == 0 ? (float)(1 + i % 100) : 0;
      rig->others[i] = row % every == 1 % every ? (float)(2 + i % 50) : 0;
      rig->out[i] = -1;
    }
  }
}

static void to_device(struct served_rig *rig, zenps_grad_t *in, zenps_grad_t *out) {
  const size_t len_bytes = rig->tensor.part.rows * SERVED_WIDTH * sizeof *rig->in;
  assert_true(rig->n_on_device < 2 * SERVED_BEGUN_MAX);
  in->memory = out->memory = ZENPS_DEVICE;
  in->stream = out->stream = rig->gpu.stream;
  in->values = rig->on_device[rig->n_on_device++] = gpu_upload(&rig->gpu, rig->in, len_bytes);
  out->values = rig->on_device[rig->n_on_device++] = gpu_new(&rig->gpu, len_bytes);
}

void served_begin(struct served_rig *rig, struct rig_request *request, uint64_t step, uint64_t timeout_ms) {
  zenps_grad_t in;
  memset(&in, 0, sizeof in);
  in.layout = ZENPS_DENSE;
  in.memory = ZENPS_HOST;
  in.values = rig->in;
  void *const values = request->out.values ? request->out.values : rig->out;
  request->out = in;
  request->out.values = values;
  if (rig->worker.device) to_device(rig, &in, &request->out);
  assert_int_equal(rig_begin(&rig->worker, request, &rig->tensor, step, timeout_ms, &in), ZPS_OK);
}

static void from_device(struct served_rig *rig) {
  const size_t len_bytes = rig->tensor.part.rows * SERVED_WIDTH * sizeof *rig->out;
  void *const out = gpu_download(&rig->gpu, rig->on_device[rig->n_on_device - 1], len_bytes);
  memcpy(rig->out, out, len_bytes);
  free(out);
}

void served_check(struct served_rig *rig) {
  if (rig->worker.device) from_device(rig);
  for (uint64_t i = 0; i < rig->tensor.part.rows * SERVED_WIDTH; i++) {
    if (rig->out[i] != rig->in[i] + rig->others[i])
      fail_msg("value %llu is %g, not %g", (unsigned long long)i, (double)rig->out[i],
               (double)(rig->in[i] + rig->others[i]));
  }
}

/* ------------------------------------------------------------ what workers push */

static void add(struct served_server *server, uint32_t p, const struct zps_slice *slice, const void *payload) {
  struct served_rig *rig = server->rig;
  const struct zps_partition *part = &rig->tensor.part;
  struct zps_slice_view view;
  struct zps_error error = {.text = ""};
  struct zps_index_cursor cursor;
  if (zps_slice_view_init(&view, slice->codec, zps_partition_size(part, p), slice->nnz, SERVED_WIDTH, ZPS_DTYPE_F32,
                          ZPS_VALUES_RAW, payload, slice->len_bytes, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  const float *values = view.values;
  zps_index_cursor_init(&cursor, &view);
  for (uint32_t z = 0, local; z < slice->nnz; z++) {
    assert_int_equal(zps_index_cursor_read(&cursor, UINT32_MAX, &local, 1), 1);
    const uint64_t row = zps_partition_row(part, p, local);
    rig->has_row[row] = true;
    for (unsigned w = 0; w < SERVED_WIDTH; w++) rig->sum[row * SERVED_WIDTH + w] = values[z * SERVED_WIDTH + w];
  }
  server->n_rows += slice->nnz;
  server->n_came++;
}

static uint32_t next_owned(const struct served_rig *rig, uint32_t p) {
  const uint32_t s = rig->owners[p++];
  while (p < rig->tensor.part.n_parts && rig->owners[p] != s) p++;
  return p;
}

static void add_joined(struct served_server *server, const struct zps_slice *slice, const void *payload) {
  const struct served_rig *rig = server->rig;
  const struct zps_partition *part = &rig->tensor.part;
  struct zps_split split;
  struct zps_error error = {.text = ""};
  uint64_t m = 0;
  uint32_t p = slice->partition;
  for (uint32_t n = 0; n <= slice->n_more; n++, p = next_owned(rig, p)) m += zps_partition_size(part, p);
  if (zps_split_init(&split, slice->codec, m, slice->nnz, SERVED_WIDTH, ZPS_DTYPE_F32, ZPS_VALUES_RAW, payload,
                     slice->len_bytes, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  p = slice->partition;
  for (uint32_t n = 0; n <= slice->n_more; n++, p = next_owned(rig, p)) {
    _Alignas(8) uint8_t coo[ZPS_JOIN_BYTES_MAX];
    struct zps_slice one = {.codec = ZPS_CODEC_COO, .nnz = zps_split_next(&split, zps_partition_size(part, p))};
    one.len_bytes = zps_split_write(&split, coo);
    add(server, p, &one, coo);
  }
}

static void forget(struct served_server *server, uint32_t s, uint64_t step) {
  struct served_rig *rig = server->rig;
  server->step = step;
  server->n_came = 0;
  server->n_rows = 0;
  for (uint64_t row = 0; row < rig->tensor.part.rows; row++) {
    uint32_t local;
    if (rig->owners[zps_partition_of(&rig->tensor.part, row, &local)] != s) continue;
    rig->has_row[row] = false;
    for (unsigned w = 0; w < SERVED_WIDTH; w++) rig->sum[row * SERVED_WIDTH + w] = 0;
  }
}

static void take_push(struct fake *fake, const struct zps_frame_round *push) {
  struct served_server *server = fake->ctx;
  const uint32_t s = fake->self & ~ZPS_WIRE_SRC_SERVER;
  server->n_back += push->step < server->step;
  if (server->n_came == 0 || server->step != push->step) forget(server, s, push->step);
  for (uint32_t i = 0; i < push->n_slices; i++) {
    const struct zps_slice *slice = &push->slices[i];
    void *payload = aligned_alloc(64, (slice->len_bytes + 64) & ~63ull);
    assert_non_null(payload);
    assert_int_equal(server->rig->owners[slice->partition], s);
    const bool is_there = fake_read(fake, slice, payload) == ZPS_OK;
    if (is_there && slice->n_more > 0)
      add_joined(server, slice, payload);
    else if (is_there)
      add(server, slice->partition, slice, payload);
    free(payload);
  }
}

/* ------------------------------------------------------------ sums */

uint32_t served_part(const struct served_rig *rig, uint32_t s, uint32_t n) {
  uint32_t p = 0;
  while (rig->owners[p] != s || n-- > 0) p++;
  return p;
}

static uint32_t parts_of(const struct served_rig *rig, uint32_t s) {
  uint32_t n = 0;
  for (uint32_t p = 0; p < rig->tensor.part.n_parts; p++) n += rig->owners[p] == s;
  return n;
}

void served_say(struct served_rig *rig, uint32_t s, uint64_t step, const struct zps_slice *slice) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_RESULT,
                            .u.round = {.tensor = rig->tensor.id, .step = step, .n_slices = 1, .slices = {*slice}}};
  fake_send(rig->at[s], &frame);
}

/* The sum of a partition as COO: values, then indices. Returns how many rows. */
static uint32_t make_sum(struct served_rig *rig, uint32_t p, uint8_t *coo) {
  const struct zps_partition *part = &rig->tensor.part;
  const uint32_t m = zps_partition_size(part, p);
  uint32_t z = 0;
  for (int pass = 0; pass < 2; pass++) {
    uint32_t at = 0;
    for (uint32_t local = 0; local < m; local++) {
      const uint64_t row = zps_partition_row(part, p, local);
      const float *others = &rig->others[row * SERVED_WIDTH], *ours = &rig->sum[row * SERVED_WIDTH];
      if (!rig->has_row[row] && others[0] == 0) continue;
      const float value[SERVED_WIDTH] = {ours[0] + others[0], ours[1] + others[1]};
      if (pass == 0)
        memcpy(coo + z++ * sizeof value, value, sizeof value);
      else
        memcpy(coo + z * sizeof value + at++ * sizeof local, &local, sizeof local);
    }
  }
  return z;
}

void served_answer_part(struct served_rig *rig, uint32_t s, uint64_t step, uint32_t p) {
  const uint32_t m = zps_partition_size(&rig->tensor.part, p);
  uint8_t *coo = malloc((m + 1) * (SERVED_WIDTH * sizeof(float) + sizeof(uint32_t)));
  assert_non_null(coo);
  struct zps_slice slice = {.partition = p, .codec = ZPS_CODEC_COO, .is_inline = true, .data = coo};
  slice.nnz = make_sum(rig, p, coo);
  slice.len_bytes = slice.nnz * (SERVED_WIDTH * sizeof(float) + sizeof(uint32_t));
  const bool is_read = slice.len_bytes > 0 && (rig->servers[s].reads_only || slice.len_bytes > ZPS_WIRE_READ_BYTES);
  if (is_read) fake_expose(rig->at[s], coo, slice.len_bytes, &slice);
  served_say(rig, s, step, &slice);
  free(coo);
}

static void answer_joined(struct served_rig *rig, uint32_t s, uint64_t step) {
  _Alignas(8) uint8_t coo[ZPS_JOIN_BYTES_MAX], payload[ZPS_JOIN_BYTES_MAX];
  struct zps_joined join;
  struct zps_slice slice = {.partition = served_part(rig, s, 0), .is_inline = true, .data = payload};
  enum zps_codec codec;
  zps_join_init(&join, SERVED_WIDTH, ZPS_DTYPE_F32, ZPS_VALUES_RAW);
  for (uint32_t p = slice.partition, n = 0; p < rig->tensor.part.n_parts; p = next_owned(rig, p), n++) {
    const uint32_t m = zps_partition_size(&rig->tensor.part, p), z = make_sum(rig, p, coo);
    const struct zps_slice_view view = zps_slice_view_own(ZPS_CODEC_COO, m, z, SERVED_WIDTH, ZPS_DTYPE_F32,
                                                          ZPS_VALUES_RAW, coo, z * (SERVED_WIDTH * sizeof(float) + 4));
    zps_join_add(&join, &view);
    slice.nnz += z;
    slice.n_more = n;
  }
  assert_true(zps_join_write(&join, 1u << ZPS_CODEC_COO, payload, sizeof payload, &codec, &slice.len_bytes));
  slice.codec = (uint8_t)codec;
  served_say(rig, s, step, &slice);
}

void served_answer(struct served_rig *rig, uint32_t s, uint64_t step) {
  if (rig->servers[s].joins) {
    answer_joined(rig, s, step);
    return;
  }
  for (uint32_t p = 0; p < rig->tensor.part.n_parts; p++) {
    if (rig->owners[p] == s) served_answer_part(rig, s, step, p);
  }
}

/* ------------------------------------------------------------ of themselves */

static void on_frame(struct fake *fake, struct fake_frame *frame) {
  struct served_server *server = fake->ctx;
  struct served_rig *rig = server->rig;
  const uint32_t s = fake->self & ~ZPS_WIRE_SRC_SERVER;
  const struct zps_frame_abort *abort = &frame->frame.u.abort;
  switch (frame->frame.header.type) {
    case ZPS_FRAME_PUSH:
      take_push(fake, &frame->frame.u.round);
      if (server->answers && server->n_came == parts_of(rig, s)) {
        served_answer(rig, s, server->step);
        server->n_came = 0;
      }
      break;
    case ZPS_FRAME_GIVE:
      if (!server->takes_gifts) {
        fake_keep(fake, frame);
        return;
      }
      take_push(fake, &frame->frame.u.round);
      break;
    case ZPS_FRAME_ABORT:
      if (server->answers) {
        server->n_came = 0;
        fake_abort(fake, abort->tensor, abort->step, abort->code, "so be it");
        break;
      }
      fake_keep(fake, frame);
      return;
    default:
      if (server->answers) break;
      fake_keep(fake, frame);
      return;
  }
  free(frame);
}

void served_take(struct served_rig *rig, uint32_t s, uint64_t step) {
  const struct served_server *server = &rig->servers[s];
  UNTIL(server->step == step && server->n_came == parts_of(rig, s));
}
