/* Rounds between ranks that go well: one worker, whenever and however the messages of the others come. */
#include "tests/unit/worker/peer/peer_rig.h"

#include "tests/support/logs.h"
#include "worker/schemes/common.h"

enum { TAG_ALL = 0 };                                             /* agsparse */
enum { TAG_IN = 0, TAG_OUT = 1, TAG_STAGE = 2 };                  /* recursive-doubling */
enum { TAG_SPLIT = 1, TAG_RANGE = 2, ROWS = 400, LARGE = 20000 }; /* dense-split */

static struct peer_rig rig;
static struct rig_request second;
static float results[2][PEER_ROWS_MAX * PEER_WIDTH];

static int begin_test(void **state) {
  (void)state;
  logs_start();
  memset(&second, 0, sizeof second);
  second.out.values = results[0];
  return 0;
}

static int end_test(void **state) {
  (void)state;
  peer_close(&rig);
  logs_finish();
  return 0;
}

static void open_two(const struct zps_peer_scheme *scheme, uint64_t rows, unsigned every) {
  peer_open(&rig, &(struct peer_config){.worker.world = 2, .worker.checksums = true, .scheme = scheme, .rows = rows});
  peer_draw(&rig, every);
}

static struct fake *rank(uint32_t r) {
  return &rig.worker.ranks[r];
}

/* ------------------------------------------------------------ agsparse */

static void exchange_small(uint64_t step) {
  peer_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, step, TAG_ALL, 0, rig.tensor.part.rows, rig.in);
  peer_say(&rig, 1, step, TAG_ALL, PEER_INLINE, 0, rig.tensor.part.rows, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

static void inside_frames(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, ROWS, 5);
  for (uint64_t step = 1; step <= 3; step++) {
    memset(rig.out, 0xff, sizeof rig.out);
    exchange_small(step);
    assert_false(rig.request.serving);
    assert_int_equal(rig.request.stats.nnz_in, ROWS / 5);
    assert_string_equal(rig.request.stats.scheme, "agsparse");
    fake_done(rank(1), PEER_TENSOR, step); /* nothing was to be read, so no rank waits for it */
    rig_expect_released(&rig.request);
  }
}

/* A pushed payload stays until it is read; the result need not wait for that. */
static void read(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, LARGE, 2);
  for (uint64_t step = 1; step <= 2; step++) {
    peer_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
    peer_say(&rig, 1, step, TAG_ALL, PEER_READ, 0, LARGE, rig.theirs[1]);
    rig_expect_ok(&rig.request);
    peer_check(&rig);
    fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, step);
    assert_true(rig.request.serving);
    assert_false(atomic_load(&rig.request.released));
    assert_true(rig_held(&rig.worker) > 0);
    peer_expect(&rig, 1, step, TAG_ALL, 0, LARGE, rig.in);
    fake_done(rank(1), PEER_TENSOR, step);
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
  }
}

static void small_messages_read(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, ROWS, 5);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_READ, 0, ROWS, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1);
}

static void in_place(void **state) {
  (void)state;
  for (unsigned large = 0; large < 2; large++) {
    const uint64_t rows = large ? LARGE : ROWS;
    open_two(&zps_peer_agsparse, rows, 3);
    memcpy(results[1], rig.in, sizeof rig.in);
    rig.request.out.values = rig.in;
    peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
    peer_expect(&rig, 1, 1, TAG_ALL, 0, rows, results[1]);
    peer_say(&rig, 1, 1, TAG_ALL, large ? PEER_READ : PEER_INLINE, 0, rows, rig.theirs[1]);
    rig_expect_ok(&rig.request);
    memcpy(rig.out, rig.in, sizeof rig.out);
    memcpy(rig.in, results[1], sizeof rig.in);
    peer_check(&rig);
    peer_close(&rig);
  }
}

static void as_rows(void **state) {
  (void)state;
  static int64_t in_ids[ROWS], out_ids[ROWS];
  static float in_values[ROWS * PEER_WIDTH], out_values[ROWS * PEER_WIDTH];
  open_two(&zps_peer_agsparse, ROWS, 5);
  for (unsigned own = 0; own < 2; own++) {
    zenps_grad_t in = {
        .struct_size = sizeof in, .layout = ZENPS_ROWS, .memory = ZENPS_HOST, .row_ids = in_ids, .values = in_values};
    for (int64_t row = 0; row < ROWS; row++) {
      if (rig.in[row * PEER_WIDTH] == 0) continue;
      in_ids[in.nnz] = row;
      memcpy(&in_values[in.nnz++ * PEER_WIDTH], &rig.in[row * PEER_WIDTH], PEER_WIDTH * sizeof(float));
    }
    rig.request.out = (zenps_grad_t){.struct_size = sizeof in, .layout = ZENPS_ROWS, .memory = ZENPS_HOST};
    if (own) {
      rig.request.out.row_ids = out_ids;
      rig.request.out.values = out_values;
      rig.request.out.capacity = ROWS;
    }
    assert_int_equal(rig_begin(&rig.worker, &rig.request, &rig.tensor, own, RIG_TIMEOUT_MS, &in), ZPS_OK);
    peer_expect(&rig, 1, own, TAG_ALL, 0, ROWS, rig.in);
    peer_say(&rig, 1, own, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
    rig_expect_ok(&rig.request);
    assert_int_equal(rig.request.out.nnz, 2 * ROWS / 5);
    memset(rig.out, 0, sizeof rig.out);
    for (uint64_t i = 0; i < rig.request.out.nnz; i++)
      memcpy(&rig.out[rig.request.out.row_ids[i] * PEER_WIDTH], (float *)rig.request.out.values + i * PEER_WIDTH,
             PEER_WIDTH * sizeof(float));
    peer_check(&rig);
    fake_done(rank(1), PEER_TENSOR, own);
    rig_expect_released(&rig.request);
  }
}

static void means_and_maxima(void **state) {
  (void)state;
  for (unsigned max = 0; max < 2; max++) {
    peer_open(&rig, &(struct peer_config){.worker.world = 2,
                                          .worker.checksums = true,
                                          .scheme = &zps_peer_agsparse,
                                          .rows = ROWS,
                                          .op = max ? ZPS_OP_MAX : ZPS_OP_MEAN});
    peer_draw(&rig, 1);
    peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
    peer_say_all(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
    rig_expect_ok(&rig.request);
    for (unsigned i = 0; i < ROWS * PEER_WIDTH; i++) {
      const float ours = rig.in[i], theirs = rig.theirs[1][i];
      assert_true(rig.out[i] == (max ? (ours > theirs ? ours : theirs) : (ours + theirs) * 0.5f));
    }
    peer_close(&rig);
  }
}

/* ------------------------------------------------------------ recursive doubling */

static void add(float *sum, const float *more) {
  for (unsigned i = 0; i < ROWS * PEER_WIDTH; i++) sum[i] += more[i];
}

static void two_double(void **state) {
  (void)state;
  open_two(&zps_peer_recursive_doubling, ROWS, 4);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, 1, TAG_STAGE, 0, ROWS, rig.in);
  peer_say(&rig, 1, 1, TAG_STAGE, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* Rank 2 is one too many: it gives its rows to rank 0, and gets the sum from there. */
static void three_double(void **state) {
  (void)state;
  static float sum[ROWS * PEER_WIDTH];
  peer_open(&rig, &(struct peer_config){.worker.world = 3, .scheme = &zps_peer_recursive_doubling, .rows = ROWS});
  peer_draw(&rig, 4);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say(&rig, 1, 1, TAG_STAGE, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  assert_false(peer_has(&rig, 1, 1, TAG_STAGE)); /* not before it has rank 2's */
  peer_say(&rig, 2, 1, TAG_IN, PEER_INLINE, 0, ROWS, rig.theirs[2]);
  memcpy(sum, rig.in, sizeof sum);
  add(sum, rig.theirs[2]);
  peer_expect(&rig, 1, 1, TAG_STAGE, 0, ROWS, sum);
  add(sum, rig.theirs[1]);
  peer_expect(&rig, 2, 1, TAG_OUT, 0, ROWS, sum);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* As rank 2 sees it. */
static void the_one_too_many(void **state) {
  (void)state;
  static float sum[ROWS * PEER_WIDTH];
  peer_open(&rig, &(struct peer_config){
                      .worker = {.world = 3, .rank = 2}, .scheme = &zps_peer_recursive_doubling, .rows = ROWS});
  peer_draw(&rig, 4);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 0, 1, TAG_IN, 0, ROWS, rig.in);
  memcpy(sum, rig.in, sizeof sum);
  add(sum, rig.theirs[0]);
  add(sum, rig.theirs[1]);
  peer_say(&rig, 0, 1, TAG_OUT, PEER_READ, 0, ROWS, sum);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* ------------------------------------------------------------ dense-split */

static float half_sum[LARGE * PEER_WIDTH];

/* The messages of rank 1 in it, except its DONE. */
static void split_by_rank_1(uint64_t step, enum peer_how how) {
  const uint64_t rows = rig.tensor.part.rows, half = rows / 2;
  peer_say_all(&rig, 1, step, TAG_SPLIT, how, 0, half, rig.theirs[1]);
  peer_expect(&rig, 1, step, TAG_SPLIT, half, rows, &rig.in[half * PEER_WIDTH]);
  for (uint64_t i = 0; i < rows * PEER_WIDTH; i++) half_sum[i] = rig.in[i] + rig.theirs[1][i];
  peer_expect(&rig, 1, step, TAG_RANGE, 0, half, half_sum);
  peer_say_all(&rig, 1, step, TAG_RANGE, how, half, rows, &half_sum[half * PEER_WIDTH]);
}

static void split_inside_frames(void **state) {
  (void)state;
  open_two(&zps_peer_dense_split, ROWS, 3);
  for (uint64_t step = 1; step <= 2; step++) {
    peer_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
    split_by_rank_1(step, PEER_INLINE);
    rig_expect_ok(&rig.request);
    peer_check(&rig);
    fake_done(rank(1), PEER_TENSOR, step);
    rig_expect_released(&rig.request);
  }
}

/* Other ranks read the gradient itself, not a copy, and the trainer gets it back when they have said DONE. */
static void split_zero_copy(void **state) {
  (void)state;
  open_two(&zps_peer_dense_split, LARGE, 3);
  for (uint64_t step = 1; step <= 2; step++) {
    peer_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
    UNTIL(peer_has(&rig, 1, step, TAG_SPLIT));
    assert_false(rig.messages[1]->slice.is_inline);
    assert_int_equal(rig.messages[1]->slice.addr, (uintptr_t)&rig.in[LARGE / 2 * PEER_WIDTH]);
    split_by_rank_1(step, PEER_READ);
    fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, step); /* it has all of its result */
    assert_false(atomic_load(&rig.request.over));            /* others still read its memory */
    fake_done(rank(1), PEER_TENSOR, step);
    rig_expect_ok(&rig.request);
    peer_check(&rig);
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
  }
}

/* ------------------------------------------------------------ rabenseifner */

/* Rows [lo, hi) of ranks `a` and `b`, or of all. */
static const float *part_of_sum(uint32_t a, uint32_t b, uint64_t lo, uint64_t hi) {
  for (uint64_t i = lo * PEER_WIDTH; i < hi * PEER_WIDTH; i++) {
    half_sum[i] = 0;
    for (uint32_t r = 0; r < 4; r++)
      if (a == b || r == a || r == b) half_sum[i] += r == rig.worker.rank ? rig.in[i] : rig.theirs[r][i];
  }
  return &half_sum[lo * PEER_WIDTH];
}

/* What was gathered leaves as one message, from where it lies: the block of this rank, and behind it the one that it
 * has read. Small blocks, which came within frames, are copied together. */
static void gathered_blocks_are_one_message(void **state) {
  (void)state;
  enum { TAG_HALVES = 2, TAG_QUARTERS = 3, TAG_GATHER = 6, TAG_GATHER_TWO = 7 };
  for (unsigned large = 0; large < 2; large++) {
    const uint64_t rows = large ? LARGE : ROWS, half = rows / 2, quarter = rows / 4;
    const enum peer_how how = large ? PEER_READ : PEER_INLINE;
    peer_open(&rig, &(struct peer_config){
                        .worker.world = 4, .worker.checksums = true, .scheme = &zps_peer_rabenseifner, .rows = rows});
    peer_draw(&rig, 2);
    peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
    peer_expect(&rig, 2, 1, TAG_HALVES, half, rows, &rig.in[half * PEER_WIDTH]);
    peer_say_all(&rig, 2, 1, TAG_HALVES, how, 0, half, rig.theirs[2]);
    peer_expect(&rig, 1, 1, TAG_QUARTERS, quarter, half, part_of_sum(0, 2, quarter, half));
    peer_say_all(&rig, 1, 1, TAG_QUARTERS, how, 0, quarter, part_of_sum(1, 3, 0, quarter));
    UNTIL(peer_has(&rig, 1, 1, TAG_GATHER));
    const struct zps_slice first = rig.messages[1]->slice;
    peer_expect(&rig, 1, 1, TAG_GATHER, 0, quarter, part_of_sum(0, 0, 0, quarter));
    peer_say_all(&rig, 1, 1, TAG_GATHER, how, quarter, half, part_of_sum(0, 0, quarter, half));
    UNTIL(peer_has(&rig, 2, 1, TAG_GATHER_TWO));
    const struct zps_slice both = rig.messages[2]->slice;
    assert_int_equal(both.len_bytes, half * PEER_WIDTH * sizeof(float));
    assert_int_equal(both.is_inline, !large);
    assert_true(!large || both.addr == first.addr);
    peer_expect(&rig, 2, 1, TAG_GATHER_TWO, 0, half, part_of_sum(0, 0, 0, half));
    peer_say_all(&rig, 2, 1, TAG_GATHER_TWO, how, half, rows, part_of_sum(0, 0, half, rows));
    rig_expect_ok(&rig.request);
    peer_check(&rig);
    for (uint32_t r = 1; r <= 3; r++) fake_done(rank(r), PEER_TENSOR, 1);
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
    peer_close(&rig);
  }
}

/* ------------------------------------------------------------ before and after */

static void look_unexpected(void *ctx) {
  *(unsigned *)ctx = rig.worker.rounds.unexpected.n_rounds;
}

static unsigned n_unexpected(void) {
  unsigned n;
  rig_do(&rig.worker, look_unexpected, &n);
  return n;
}

static void before_it_begins(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, ROWS, 5);
  for (uint64_t step = 1; step <= 2; step++) {
    peer_say(&rig, 1, step, TAG_ALL, step == 1 ? PEER_INLINE : PEER_READ, 0, ROWS, rig.theirs[1]);
    UNTIL(n_unexpected() == 1);
    peer_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
    rig_expect_ok(&rig.request);
    peer_check(&rig);
    assert_int_equal(n_unexpected(), 0);
    peer_expect(&rig, 1, step, TAG_ALL, 0, ROWS, rig.in);
    fake_done(rank(1), PEER_TENSOR, step);
    rig_expect_released(&rig.request);
  }
}

/* Late messages reach no round; a rank that gives up a past step is told that the step was done here. */
static void after_it_is_past(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, ROWS, 5);
  exchange_small(1);
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_released(&rig.request);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  fake_done(rank(1), PEER_TENSOR, 1);
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1);
  assert_int_equal(n_unexpected(), 0);
  exchange_small(2);
}

static void look_committed(void *ctx) {
  *(bool *)ctx = rig.request.round->committed;
}

static bool is_committed(void) {
  bool is;
  rig_do(&rig.worker, look_committed, &is);
  return is;
}

/* An attempt of a round of few rows, which are added up on the spot, is committed, and its result is held up. */
static void begin_nearly_done(uint32_t world, struct rig_block *block) {
  enum { FEW = 20 };
  const zenps_grad_t in = {.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig.in};
  peer_open(&rig,
            &(struct peer_config){.worker = {.world = world, .threads = 1}, .scheme = &zps_peer_agsparse, .rows = FEW});
  peer_draw(&rig, 5);
  rig.request.out = in;
  rig.request.out.values = NULL;
  rig.request.out.layout = ZENPS_ROWS;
  assert_int_equal(rig_begin(&rig.worker, &rig.request, &rig.tensor, 1, RIG_TIMEOUT_MS, &in), ZPS_OK);
  for (uint32_t r = 1; r < world; r++) peer_expect(&rig, r, 1, TAG_ALL, 0, FEW, rig.in);
  rig_block(block, rig.worker.plane.pool); /* what makes the result */
  for (uint32_t r = 1; r < world; r++) peer_say(&rig, r, 1, TAG_ALL, PEER_INLINE, 0, FEW, rig.theirs[r]);
  UNTIL(is_committed());
}

/* The other rank gives up a committed attempt, and this rank fails, too. The next frames are of their second attempt.
 */
static void given_up_when_nearly_done(void **state) {
  (void)state;
  struct rig_block block;
  begin_nearly_done(2, &block);
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  rig_unblock(&block);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  rig_expect_released(&rig.request);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, rig.tensor.part.rows, rig.theirs[1]);
  UNTIL(n_unexpected() == 1);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* Rank 1 has given up its second attempt, too, before rank 2 speaks of the first one. This rank's second attempt fails
 * with rank 1's. */
static void given_up_twice_when_nearly_done(void **state) {
  (void)state;
  struct rig_block block;
  begin_nearly_done(3, &block);
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  rig_unblock(&block);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it again");
  fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  rig_expect_released(&rig.request);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it again");
  fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it again");
  rig_expect_released(&rig.request);
}

/* The other rank gives up a step that is done here, and has not said DONE: it is told so, and the round does not wait
 * for it. */
static void given_up_when_done(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, LARGE, 2);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_READ, 0, LARGE, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1);
  assert_true(rig.request.serving);
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
}

static void fail_run(void *ctx) {
  zps_rounds_fail(ctx, &(struct zps_frame_abort){.code = ZPS_ERR_PEER_LOST, .text = "a rank is dead"});
}

/* A rank that closes the job waits for those that read from it still, but not when the job fails meanwhile: none of
 * them says DONE then. */
static void failed_while_closing(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, LARGE, 2);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_READ, 0, LARGE, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  assert_true(rig.request.serving);
  zps_rounds_close(&rig.worker.rounds);
  assert_false(atomic_load(&rig.request.released));
  rig_do(&rig.worker, fail_run, &rig.worker.rounds);
  rig_expect_released(&rig.request);
}

/* Steps in flight at once. */
static void two_steps(void **state) {
  (void)state;
  open_two(&zps_peer_agsparse, ROWS, 5);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_begin(&rig, &second, 2, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, 2, TAG_ALL, 0, ROWS, rig.in);
  peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
  peer_say(&rig, 1, 2, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  rig_expect_ok(&second);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* ------------------------------------------------------------ in turn */

static unsigned n_failed;

static zps_err_t memory_open(const struct zps_peer_plan *plan, void **state_p) {
  (void)plan;
  *state_p = &n_failed;
  return ZPS_OK;
}

static void memory_close(void *state) {
  (void)state;
}

static void memory_failed(void *state) {
  ++*(unsigned *)state;
}

static void memory_build(const struct zps_peer_plan *plan, struct zps_program *program) {
  zps_peer_allgather_sum(plan, program, zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE));
}

/* agsparse, as if it remembered something. */
static const struct zps_peer_scheme remembers = {.name = "remembers",
                                                 .stateful = true,
                                                 .open = memory_open,
                                                 .close = memory_close,
                                                 .failed = memory_failed,
                                                 .build = memory_build};

static void look_queued(void *ctx) {
  *(bool *)ctx = rig.peer.queued != NULL;
}

static bool is_queued(void) {
  bool is;
  rig_do(&rig.worker, look_queued, &is);
  return is;
}

static void stateful_schemes_in_turn(void **state) {
  (void)state;
  n_failed = 0;
  open_two(&remembers, ROWS, 5);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_begin(&rig, &second, 2, RIG_TIMEOUT_MS);
  UNTIL(is_queued());
  peer_say(&rig, 1, 2, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]); /* it may be ahead */
  peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
  assert_false(peer_has(&rig, 1, 2, TAG_ALL));
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  rig_expect_ok(&second);
  memcpy(rig.out, results[0], sizeof rig.out);
  peer_check(&rig);
  assert_int_equal(second.number, 1);
  assert_int_equal(n_failed, 0);
}

/* A round that fails lets the next begin; a round that is canceled in line leaves the line. */
static void stateful_schemes_that_fail(void **state) {
  (void)state;
  static struct rig_request third;
  memset(&third, 0, sizeof third);
  third.out.values = results[1];
  n_failed = 0;
  open_two(&remembers, ROWS, 5);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_begin(&rig, &second, 2, RIG_TIMEOUT_MS);
  peer_begin(&rig, &third, 3, RIG_TIMEOUT_MS);
  UNTIL(is_queued());
  rig_cancel(&second);
  rig_expect_error(&second, ZPS_ERR_CANCELED, "rank 0 canceled it");
  rig_cancel(&rig.request);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  peer_expect(&rig, 1, 3, TAG_ALL, 0, ROWS, rig.in);
  peer_say(&rig, 1, 3, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  rig_expect_ok(&third);
  memcpy(rig.out, results[1], sizeof rig.out);
  peer_check(&rig);
  assert_int_equal(n_failed, 1); /* of the one that had begun */
}

#define GOOD(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      GOOD(inside_frames),
      GOOD(read),
      GOOD(small_messages_read),
      GOOD(in_place),
      GOOD(as_rows),
      GOOD(means_and_maxima),
      GOOD(two_double),
      GOOD(three_double),
      GOOD(the_one_too_many),
      GOOD(split_inside_frames),
      GOOD(split_zero_copy),
      GOOD(gathered_blocks_are_one_message),
      GOOD(before_it_begins),
      GOOD(after_it_is_past),
      GOOD(given_up_when_nearly_done),
      GOOD(given_up_twice_when_nearly_done),
      GOOD(given_up_when_done),
      GOOD(failed_while_closing),
      GOOD(two_steps),
      GOOD(stateful_schemes_in_turn),
      GOOD(stateful_schemes_that_fail),
  };
  return cmocka_run_group_tests_name("rounds between ranks", tests, NULL, NULL);
}
