/* Rounds over servers that go well: one worker, with servers that own any partitions and send sums in any way. */
#include "tests/unit/worker/served/served_rig.h"

#include "tests/support/logs.h"

static struct served_rig rig;

static int begin_test(void **state) {
  (void)state;
  logs_start();
  return 0;
}

static int end_test(void **state) {
  (void)state;
  served_close(&rig);
  logs_finish();
  return 0;
}

/* Steps 1 to 3 of the same tensor: rounds are used again. */
static void take_steps(unsigned every) {
  served_draw(&rig, every);
  for (uint32_t s = 0; s < rig.worker.n_servers; s++) rig.servers[s].answers = true;
  for (uint64_t step = 1; step <= 3; step++) {
    memset(rig.out, 0xff, sizeof rig.out);
    served_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
    rig_expect_ok(&rig.request);
    served_check(&rig);
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
  }
}

static uint64_t count(const float *values) {
  uint64_t n = 0;
  for (uint64_t row = 0; row < rig.tensor.part.rows; row++) n += values[row * SERVED_WIDTH] != 0;
  return n;
}

static void inside_frames(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.rows = 200, .n_parts = 4});
  take_steps(5);
  const zenps_request_stats_t *stats = &rig.request.stats;
  assert_int_equal(stats->nnz_in, count(rig.in));
  assert_int_equal(stats->nnz_out, count(rig.in) + count(rig.others));
  assert_int_equal(stats->partitions, 4);
  assert_string_equal(stats->scheme, "balanced");
  uint64_t sent = 0, in_union = 0;
  for (uint32_t p = 0; p < 4; p++) {
    sent += rig.request.sent[p];
    in_union += rig.request.in_union[p];
  }
  assert_int_equal(sent, stats->nnz_in);
  assert_int_equal(in_union, stats->nnz_out);
  assert_true(stats->payload_out > 0 && stats->payload_in > 0 && stats->bytes_out > stats->payload_out);
}

static void several_servers(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker.n_servers = 3, .rows = 999, .n_parts = 8});
  take_steps(7);
}

static void read(void **state) {
  (void)state;
  served_open(&rig,
              &(struct served_config){.worker.n_servers = 2, .worker.checksums = true, .rows = 30000, .n_parts = 4});
  take_steps(2);
}

/* Sums that are small, and are read all the same. */
static void small_sums_read(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 300, .n_parts = 4});
  rig.servers[1].reads_only = true;
  take_steps(3);
}

static void joined(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 120, .n_parts = 8});
  rig.servers[0].joins = rig.servers[1].joins = true;
  take_steps(4);
}

static void one_thread(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker = {.n_servers = 2, .threads = 1}, .rows = 30000, .n_parts = 6});
  take_steps(3);
}

static void other_kinds(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 2000, .n_parts = 2, .scheme = "dense-ps"});
  take_steps(3);
  served_close(&rig);
  served_open(&rig, &(struct served_config){.rows = 5000, .n_parts = 4, .codec = ZPS_CODEC_PAPER});
  take_steps(3);
}

static void nothing_to_push(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 100, .n_parts = 4});
  take_steps(200); /* row 0 alone is not zero, and row 1 of the others */
  memset(rig.in, 0, sizeof rig.in);
  memset(rig.others, 0, sizeof rig.others);
  served_begin(&rig, &rig.request, 9, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  served_check(&rig);
  assert_int_equal(rig.request.stats.nnz_in, 0);
}

static void in_place(void **state) {
  (void)state;
  static float before[SERVED_ROWS_MAX * SERVED_WIDTH];
  served_open(&rig,
              &(struct served_config){.worker.n_servers = 2, .worker.checksums = true, .rows = 20000, .n_parts = 4});
  served_draw(&rig, 3);
  rig.servers[0].answers = rig.servers[1].answers = true;
  memcpy(before, rig.in, sizeof before);
  zenps_grad_t in = {.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig.in};
  rig.request.out = in;
  assert_int_equal(rig_begin(&rig.worker, &rig.request, &rig.tensor, 1, RIG_TIMEOUT_MS, &in), ZPS_OK);
  rig_expect_ok(&rig.request);
  memcpy(rig.out, rig.in, sizeof rig.out);
  memcpy(rig.in, before, sizeof before);
  served_check(&rig);
}

/* ------------------------------------------------------------ rows */

static int64_t row_ids[SERVED_ROWS_MAX];
static float row_values[SERVED_ROWS_MAX * SERVED_WIDTH];

static void check_rows(const zenps_grad_t *out) {
  const float *values = out->values;
  int64_t last = -1;
  memset(rig.out, 0, sizeof rig.out);
  for (uint64_t i = 0; i < out->nnz; i++) {
    assert_true(out->row_ids[i] > last);
    last = out->row_ids[i];
    for (unsigned w = 0; w < SERVED_WIDTH; w++) rig.out[last * SERVED_WIDTH + w] = values[i * SERVED_WIDTH + w];
  }
  assert_int_equal(out->nnz, count(rig.in) + count(rig.others));
  served_check(&rig);
}

static void begin_rows(uint64_t step, uint64_t capacity, bool rows_in) {
  zenps_grad_t in = {.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig.in};
  static int64_t in_ids[SERVED_ROWS_MAX];
  static float in_values[SERVED_ROWS_MAX * SERVED_WIDTH];
  rig.request.out = (zenps_grad_t){.struct_size = sizeof in, .layout = ZENPS_ROWS, .memory = ZENPS_HOST};
  if (capacity > 0) {
    rig.request.out.row_ids = row_ids;
    rig.request.out.values = row_values;
    rig.request.out.capacity = capacity;
  }
  if (rows_in) {
    in.layout = ZENPS_ROWS;
    in.row_ids = in_ids;
    in.values = in_values;
    for (int64_t row = 0; row < (int64_t)rig.tensor.part.rows; row++) {
      if (rig.in[row * SERVED_WIDTH] == 0) continue;
      in_ids[in.nnz] = row;
      memcpy(&in_values[in.nnz++ * SERVED_WIDTH], &rig.in[row * SERVED_WIDTH], SERVED_WIDTH * sizeof(float));
    }
  }
  assert_int_equal(rig_begin(&rig.worker, &rig.request, &rig.tensor, step, RIG_TIMEOUT_MS, &in), ZPS_OK);
}

static void as_rows(void **state) {
  (void)state;
  for (unsigned large = 0; large < 2; large++) {
    served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = large ? 30000 : 300, .n_parts = 4});
    served_draw(&rig, 3);
    rig.servers[0].answers = rig.servers[1].answers = true;
    for (uint64_t step = 1; step <= 4; step++) {
      begin_rows(step, step % 2 ? 0 : rig.tensor.part.rows, step > 2);
      rig_expect_ok(&rig.request);
      check_rows(&rig.request.out);
      rig_expect_released(&rig.request);
    }
    served_close(&rig);
  }
}

static void more_rows_than_asked_for(void **state) {
  (void)state;
  char text[200];
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 300, .n_parts = 4});
  served_draw(&rig, 3);
  rig.servers[0].answers = rig.servers[1].answers = true;
  const uint64_t n = count(rig.in) + count(rig.others);
  begin_rows(1, n - 1, false);
  snprintf(text, sizeof text,
           "the result has %llu rows, but the caller's arrays hold %llu; it is kept for zenps_request_fetch()",
           (unsigned long long)n, (unsigned long long)n - 1);
  rig_expect_error(&rig.request, ZPS_ERR_TRUNCATED, text);
  assert_int_equal(rig.request.error.needed, n);
  assert_ptr_equal(rig.request.out.row_ids, row_ids); /* the caller's arrays stay as they were */
  zenps_grad_t kept = rig.request.out;
  kept.nnz = rig.request.stats.nnz_out;
  kept.row_ids = rig.request.arrays.rows.data;
  kept.values = rig.request.arrays.values.data;
  check_rows(&kept);
  rig_expect_released(&rig.request);
  begin_rows(2, n, false);
  rig_expect_ok(&rig.request);
  check_rows(&rig.request.out);
}

static void a_row_that_is_none(void **state) {
  (void)state;
  static int64_t ids[] = {3, 300};
  zenps_grad_t in = {.struct_size = sizeof in,
                     .layout = ZENPS_ROWS,
                     .memory = ZENPS_HOST,
                     .nnz = 2,
                     .row_ids = ids,
                     .values = row_values};
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 300, .n_parts = 4});
  rig.request.out =
      (zenps_grad_t){.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig.out};
  assert_int_equal(rig_begin(&rig.worker, &rig.request, &rig.tensor, 1, RIG_TIMEOUT_MS, &in), ZPS_OK);
  UNTIL(atomic_load(&rig.request.over));
  assert_int_equal(rig.request.error.status, ZPS_ERR_INVALID);
  assert_non_null(strstr(rig.request.error.text, "300"));
  for (uint32_t s = 0; s < 2; s++) fake_expect_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_INVALID, "300");
}

/* ------------------------------------------------------------ in any order */

static void sums_in_any_order(void **state) {
  (void)state;
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 20000, .n_parts = 8});
  served_draw(&rig, 4);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  served_take(&rig, 1, 1);
  for (uint32_t n = 4; n-- > 0;) served_answer_part(&rig, 1, 1, served_part(&rig, 1, n));
  served_take(&rig, 0, 1);
  fake_expect(&rig.worker.servers[1], ZPS_FRAME_DONE, 5, 1); /* it is through with that server, and says so */
  assert_false(fake_has(&rig.worker.servers[0], ZPS_FRAME_DONE, 5, 1));
  for (uint32_t n = 4; n-- > 0;) served_answer_part(&rig, 0, 1, served_part(&rig, 0, n));
  rig_expect_ok(&rig.request);
  served_check(&rig);
  fake_expect(&rig.worker.servers[0], ZPS_FRAME_DONE, 5, 1);
}

/* Steps in flight at once, answered backwards. */
static void several_steps(void **state) {
  (void)state;
  enum { STEPS = 5 };
  static struct rig_request requests[STEPS];
  static float out[STEPS][400 * SERVED_WIDTH];
  memset(requests, 0, sizeof requests);
  served_open(&rig, &(struct served_config){.rows = 400, .n_parts = 4});
  served_draw(&rig, 3);
  for (unsigned i = 0; i < STEPS; i++) {
    zenps_grad_t in = {.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig.in};
    requests[i].out = in;
    requests[i].out.values = out[i];
    assert_int_equal(rig_begin(&rig.worker, &requests[i], &rig.tensor, i, RIG_TIMEOUT_MS, &in), ZPS_OK);
    served_take(&rig, 0, i);
  }
  for (unsigned i = STEPS; i-- > 0;) {
    served_answer(&rig, 0, i);
    rig_expect_ok(&requests[i]);
    assert_int_equal(requests[i].number, STEPS - 1 - i);
    memcpy(rig.out, out[i], sizeof out[i]);
    served_check(&rig);
  }
}

/* A gradient that is looked at in steps, and pushed while its end is not scanned. */
static void stripes(void **state) {
  (void)state;
  enum { ROWS = 3 << 20, PARTS = 16 };
  static uint32_t owners[PARTS];
  static float in_values[ROWS], out_values[ROWS];
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 300, .n_parts = 4});
  struct zps_round_tensor tensor = rig.tensor;
  tensor.id = 6;
  tensor.owners = owners;
  tensor.shape = (struct zps_tensor_shape){ROWS, 1, ZPS_DTYPE_F32};
  tensor.width = 1;
  assert_int_equal(zps_partition_init(&tensor.part, ROWS, PARTS, 0, 1, NULL), ZPS_OK);
  assert_true(zps_partition_stripes(&tensor.part) > 1);
  for (uint32_t p = 0; p < PARTS; p++) owners[p] = p % 2;
  for (uint64_t i = 0; i < ROWS; i++) in_values[i] = i % 5000 == 0 ? (float)(1 + i % 77) : 0;
  zenps_grad_t in = {.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = in_values};
  rig.request.out = in;
  rig.request.out.values = out_values;
  for (uint32_t s = 0; s < 2; s++) rig.worker.servers[s].on_frame = NULL;
  memset(out_values, 0xff, sizeof out_values);
  assert_int_equal(rig_begin(&rig.worker, &rig.request, &tensor, 1, RIG_TIMEOUT_MS, &in), ZPS_OK);
  for (uint32_t left = PARTS; left > 0;) { /* each is sent back as it came */
    for (uint32_t s = 0; s < 2; s++) {
      struct fake *server = &rig.worker.servers[s];
      fakes_turn();
      if (!fake_has(server, ZPS_FRAME_PUSH, 6, 1)) continue;
      struct fake_frame *frame = fake_take(server, ZPS_FRAME_PUSH, 6, 1);
      const struct zps_frame_round *push = &frame->frame.u.round;
      for (uint32_t i = 0; i < push->n_slices; i++) {
        _Alignas(8) uint8_t payload[ZPS_WIRE_FRAME_MAX];
        struct zps_slice slice = push->slices[i];
        assert_true(slice.len_bytes <= sizeof payload);
        assert_int_equal(fake_read(server, &slice, payload), ZPS_OK);
        slice.is_inline = true;
        slice.data = payload;
        struct zps_frame result = {.header.type = ZPS_FRAME_RESULT,
                                   .u.round = {.tensor = 6, .step = 1, .n_slices = 1, .slices = {slice}}};
        fake_send(server, &result);
        left -= 1 + slice.n_more;
      }
      free(frame);
    }
    fakes_rest();
  }
  rig_expect_ok(&rig.request);
  assert_memory_equal(out_values, in_values, sizeof in_values);
  served_close(&rig); /* while the tensor is there */
}

#define GOOD(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      GOOD(inside_frames),
      GOOD(several_servers),
      GOOD(read),
      GOOD(small_sums_read),
      GOOD(joined),
      GOOD(one_thread),
      GOOD(other_kinds),
      GOOD(nothing_to_push),
      GOOD(in_place),
      GOOD(as_rows),
      GOOD(more_rows_than_asked_for),
      GOOD(a_row_that_is_none),
      GOOD(sums_in_any_order),
      GOOD(several_steps),
      GOOD(stripes),
  };
  return cmocka_run_group_tests_name("rounds over servers", tests, NULL, NULL);
}
