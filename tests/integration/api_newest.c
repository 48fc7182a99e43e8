/* Bounded staleness: the newest sum of several steps, while one rank is slow; again; and in trouble. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { ROWS = 5000, WIDTH = 3, STALENESS = 3, STEPS = 16, SLOW = 0 };

/* Sums that travel inside frames, and sums that ranks read. */
static const struct spec few = {.rows = ROWS,
                                .width = WIDTH,
                                .dtype = ZENPS_F32,
                                .density = 0.02,
                                .odd_values = true,
                                .options = {.staleness = STALENESS}};
static const struct spec many = {.rows = 8 * ROWS,
                                 .width = WIDTH,
                                 .dtype = ZENPS_F64,
                                 .rows_in = true,
                                 .rows_out = true,
                                 .repeats = 2,
                                 .density = 0.3,
                                 .options = {.staleness = STALENESS}};

static void push(zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank, uint64_t step) {
  zenps_request_t *request;
  zenps_grad_t in;
  grad_make(spec, rank->rank, step, &in);
  CHECK_OK(zenps_push(tensor, step, &in, &request));
  request_wait_ok(request);
  grad_free(&in);
}

static void check_sum(const struct spec *spec, const struct rank *rank, zenps_request_t *request, zenps_grad_t *out,
                      uint64_t *step_p) {
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  CHECK_OK(zenps_wait(request, SOON_MS));
  CHECK_OK(zenps_request_stats(request, &stats));
  out_check(spec, rank->world, stats.step, out);
  *step_p = stats.step;
}

/* Which step's sum came, checked. */
static uint64_t pull_newest(zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank, uint64_t step,
                            uint32_t staleness) {
  zenps_request_t *request;
  zenps_grad_t in, out;
  uint64_t got;
  grad_make(spec, rank->rank, step, &in);
  out_make(spec, &in, &out);
  CHECK_OK(zenps_pull_newest(tensor, step, staleness, NULL, &out, &request));
  check_sum(spec, rank, request, &out, &got);
  CHECK(got <= step && got + staleness >= step);
  zenps_request_free(request);
  out_free(spec, &in, &out);
  grad_free(&in);
  return got;
}

/* ------------------------------------------------------------ one rank is slow */

/* The slow rank pushes a step when the others have the sum of as many steps before it as may be: so they go on without
 * it, or this ends in a timeout. Of no step do they get a sum before the slow rank's push of the oldest that may be
 * theirs. */
static void goes_on(struct rank *rank) {
  enum { PUSHED, AHEAD }; /* words: steps that the slow rank has begun to push; for each of the others, pulls */
  const struct spec *spec = rank->arg;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", spec);
  uint64_t last = 0;
  for (uint64_t step = 0; step < STEPS; step++) {
    const unsigned ahead = (unsigned)(step + STALENESS < STEPS ? step + STALENESS : STEPS);
    for (int other = 0; rank->rank == SLOW && step > 0 && other < rank->world; other++)
      if (other != SLOW) rank_await(rank, AHEAD + (unsigned)other, ahead);
    if (rank->rank == SLOW) atomic_fetch_add(&rank->words[PUSHED], 1);
    push(tensor, spec, rank, step);
    const uint64_t got = pull_newest(tensor, spec, rank, step, STALENESS);
    CHECK(got >= last && got < rank->words[PUSHED]);
    if (rank->rank == SLOW) CHECK(got + 1 >= step); /* the others have long pushed it, if it may not be added up yet */
    last = got;
    atomic_fetch_add(&rank->words[AHEAD + rank->rank], 1);
  }
  rank_close(rank);
}

static void test_a_slow_rank_holds_nobody(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, goes_on, &few, 0);
  ranks_run(cluster_shared(), 4, goes_on, &many, 0);
}

/* ------------------------------------------------------------ which sum */

/* Bit for bit that of a pull, which may be had again; some of its rows; a step that was summed by allreduce. */
static void pulls_again(struct rank *rank) {
  struct spec spec = few;
  spec.odd_values = false;
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &spec);
  for (uint64_t step = 0; step < 6; step++) push(tensor, &spec, rank, step);
  grad_make(&spec, rank->rank, 3, &in);
  out_make(&spec, &in, &out);
  CHECK_OK(zenps_pull(tensor, 5, NULL, &out, &request));
  request_wait_ok(request); /* it is added up */
  for (int i = 0; i < 3; i++) CHECK(pull_newest(tensor, &spec, rank, 5, 3) == 5);
  CHECK(pull_newest(tensor, &spec, rank, 7, 3) == 5); /* nobody has begun 6 and 7 */
  CHECK(pull_newest(tensor, &spec, rank, 4, 1) == 4);
  CHECK(pull_newest(tensor, &spec, rank, 3, 0) == 3);
  CHECK_OK(zenps_pull(tensor, 3, NULL, &out, &request));
  request_wait_ok(request);
  out_check(&spec, rank->world, 3, &out);
  float some[10 * WIDTH];
  const zenps_rows_t rows = ZENPS_ROWS_RANGE(100, 10);
  zenps_grad_t part;
  ZENPS_GRAD_INIT(&part);
  part.layout = ZENPS_DENSE;
  part.values = some;
  CHECK_OK(zenps_pull_newest(tensor, 3, 0, &rows, &part, &request));
  request_wait_ok(request);
  CHECK(memcmp(some, (float *)out.values + 100 * WIDTH, sizeof some) == 0);
  CHECK_OK(zenps_pull_newest(tensor, 1, 1, NULL, &out, &request)); /* both were dropped for newer ones */
  request_expect(request, ZENPS_ERR_STALE, "the sum of step 1 is kept no longer");
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK_OK(zenps_allreduce(tensor, 6, &in, &out, &request));
  request_wait_ok(request);
  void *const whole = out.values;
  CHECK_OK(zenps_barrier(rank->zenps));
  ZENPS_GRAD_INIT(&out);
  out.layout = ZENPS_DENSE;
  out.values = malloc(ROWS * WIDTH * sizeof(float));
  CHECK_OK(zenps_pull_newest(tensor, 6, 2, NULL, &out, &request));
  request_wait_ok(request);
  CHECK(memcmp(out.values, whole, ROWS * WIDTH * sizeof(float)) == 0);
  free(whole);
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_the_newest_again(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, pulls_again, NULL, 0);
}

/* ------------------------------------------------------------ trouble */

/* A step that nobody has begun is waited for; canceled and asked for again, and answers to the first are none to the
 * second. The push of the same step does not hear of either. */
static void cancels(struct rank *rank) {
  zenps_request_t *request, *pushes;
  zenps_grad_t in, out;
  uint64_t got;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &many);
  grad_make(&many, rank->rank, 9, &in);
  out_make(&many, &in, &out);
  for (int i = 0; i < 5; i++) {
    CHECK_OK(zenps_pull_newest(tensor, 9, 2, NULL, &out, &request));
    CHECK_OK(zenps_cancel(request));
    request_expect(request, ZENPS_ERR_CANCELED, "canceled it");
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK_OK(zenps_push(tensor, 9, &in, &pushes));
  for (int i = 0; i < 20; i++) { /* some when the answer is under way */
    CHECK_OK(zenps_pull_newest(tensor, 9, 2, NULL, &out, &request));
    CHECK_OK(zenps_cancel(request));
    zenps_request_free(request);
  }
  CHECK_OK(zenps_pull_newest(tensor, 9, 2, NULL, &out, &request));
  check_sum(&many, rank, request, &out, &got);
  CHECK(got == 9);
  zenps_request_free(request);
  request_wait_ok(pushes);
  out_free(&many, &in, &out);
  grad_free(&in);
  rank_close(rank);
}

/* The answer to a seek that was given up comes while the push of the same step is under way: it is none of its. */
static void gives_up_then_pushes(struct rank *rank) {
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &few);
  grad_make(&few, rank->rank, 0, &in);
  out_make(&few, &in, &out);
  push(tensor, &few, rank, 0);
  for (uint64_t step = 1; step < 100; step++) {
    CHECK_OK(zenps_pull_newest(tensor, step, 3, NULL, &out, &request));
    CHECK_OK(zenps_cancel(request));
    zenps_request_free(request);
    push(tensor, &few, rank, step);
    if (step % 32 == 0) CHECK_OK(zenps_barrier(rank->zenps)); /* no rank has more rounds in flight than it may */
  }
  CHECK(pull_newest(tensor, &few, rank, 99, 3) >= 96);
  out_free(&few, &in, &out);
  grad_free(&in);
  rank_close(rank);
}

static void test_a_late_answer(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, gives_up_then_pushes, NULL, 0);
}

static void test_newest_canceled(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, cancels, NULL, 0);
}

/* Rank 2 is late, or dead: who waits for its step is told of it, with that step. */
static void lacks_one(struct rank *rank) {
  const bool dies = rank->arg;
  zenps_request_t *request;
  zenps_grad_t in, out;
  if (!dies) rank->round_timeout_ms = 2000;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &few);
  push(tensor, &few, rank, 0);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 2) {
    rank_await(rank, 0, 2);
    if (dies) raise(SIGKILL);
    rank_await(rank, 1, 2);
    rank_close(rank);
    return;
  }
  grad_make(&few, rank->rank, 1, &in);
  out_make(&few, &in, &out);
  for (uint64_t step = 1; step <= 4; step++) push(tensor, &few, rank, step);
  CHECK_OK(zenps_pull_newest(tensor, 4, 3, NULL, &out, &request)); /* not step 0 */
  atomic_fetch_add(&rank->words[0], 1);
  request_expect(request, dies ? ZENPS_ERR_PEER_LOST : ZENPS_ERR_MISSING, dies ? "rank 2" : "step 1: ");
  atomic_fetch_add(&rank->words[1], 1);
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_newest_without_a_rank(void **state) {
  static const bool dies = true;
  (void)state;
  ranks_run(cluster_shared(), 3, lacks_one, NULL, 0);
  ranks_run(cluster_shared(), 3, lacks_one, &dies, 1u << 2);
}

static void is_refused(struct rank *rank) {
  static const char *const schemes[] = {"ring", "omnireduce", "auto", "hierarchical"};
  zenps_request_t *request;
  zenps_tensor_t *tensor;
  zenps_grad_t in, out;
  rank_open(rank);
  grad_make(&few, rank->rank, 1, &in);
  out_make(&few, &in, &out);
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.staleness = 2;
  for (unsigned i = 0; i < 4; i++) {
    options.scheme = schemes[i];
    CHECK_STATUS(zenps_tensor_open(rank->zenps, schemes[i], ROWS, WIDTH, ZENPS_F32, &options, &tensor),
                 ZENPS_ERR_UNSUPPORTED);
    CHECK_SAYS(zenps_last_error()->text, "staleness is for sums that servers keep");
  }
  options.scheme = "balanced";
  options.staleness = 32;
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", ROWS, WIDTH, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "a staleness of 32 steps; at most 31");
  options.staleness = 2;
  CHECK_OK(zenps_tensor_open(rank->zenps, "t", ROWS, WIDTH, ZENPS_F32, &options, &tensor));
  CHECK_STATUS(zenps_pull_newest(tensor, 9, 3, NULL, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "opened with a staleness of 2");
  CHECK_STATUS(zenps_pull_newest(tensor, 9, 2, NULL, NULL, &request), ZENPS_ERR_INVALID);
  CHECK_OK(zenps_barrier(rank->zenps));
  options.staleness = 1 + (uint32_t)rank->rank; /* ranks agree in it */
  const zenps_status_t status = zenps_tensor_open(rank->zenps, "u", ROWS, WIDTH, ZENPS_F32, &options, &tensor);
  CHECK(status == ZENPS_OK || status == ZENPS_ERR_SHAPE);
  if (status != ZENPS_OK) {
    CHECK_SAYS(zenps_last_error()->text, ", staleness ");
    atomic_fetch_add(&rank->words[0], 1);
  }
  rank_await(rank, 0, 1);
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_newest_refused(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, is_refused, NULL, 0);
}

const struct CMUnitTest api_newest_tests[] = {
    cmocka_unit_test(test_a_slow_rank_holds_nobody), cmocka_unit_test(test_the_newest_again),
    cmocka_unit_test(test_newest_canceled),          cmocka_unit_test(test_newest_without_a_rank),
    cmocka_unit_test(test_newest_refused),           cmocka_unit_test(test_a_late_answer),
};
const size_t n_api_newest_tests = sizeof api_newest_tests / sizeof api_newest_tests[0];
