/* Allgather: rows of all ranks, bit for bit. */
#include "tests/integration/api_test.h"

enum { ROWS = 5000, WIDTH = 3, STEPS = 6 };

static const struct spec tensor_of = {.rows = ROWS, .width = WIDTH, .dtype = ZENPS_F32};

/* Every third row is nobody's; the others are dealt to the ranks. Values are bits of any kind. */
static uint32_t bits_of(uint64_t row, uint32_t i, uint64_t step) {
  static const uint32_t odd[] = {0x80000000u, 0, 0x7fa00001u, 0xffc12345u, 1, 0x7f800000u, 0x3f800000u};
  return odd[(row + i + step) % 7];
}

static void gathers(struct rank *rank) {
  static int64_t ids[ROWS];
  static uint32_t values[ROWS * WIDTH];
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &tensor_of);
  for (uint64_t step = 0; step < STEPS; step++) {
    ZENPS_GRAD_INIT(&in);
    ZENPS_GRAD_INIT(&out);
    in.layout = ZENPS_ROWS;
    in.row_ids = ids;
    in.values = values;
    for (uint64_t row = ROWS; row-- > 0;) { /* descending */
      if (row % 3 == 0 || (row + step) % (uint64_t)rank->world != (uint64_t)rank->rank) continue;
      ids[in.nnz] = (int64_t)row;
      for (uint32_t i = 0; i < WIDTH; i++) values[in.nnz * WIDTH + i] = bits_of(row, i, step);
      in.nnz++;
    }
    out.layout = step % 2 ? ZENPS_DENSE : ZENPS_ROWS;
    if (step % 2) out.values = malloc(sizeof values);
    CHECK_OK(zenps_allgather(tensor, step, &in, &out, &request));
    CHECK_OK(zenps_wait(request, SOON_MS));
    CHECK(step % 2 || out.nnz == ROWS - (ROWS + 2) / 3);
    const uint32_t *got = out.values;
    for (uint64_t row = 0, at = 0; row < ROWS; row++) {
      const bool given = row % 3 != 0;
      if (step % 2) at = row;
      if (!(step % 2) && given) CHECK(out.row_ids[at] == (int64_t)row);
      for (uint32_t i = 0; i < WIDTH && (given || step % 2); i++)
        CHECK(got[at * WIDTH + i] == (given ? bits_of(row, i, step) : 0));
      at += given;
    }
    zenps_request_free(request);
    if (step % 2) free(out.values);
  }
  rank_close(rank);
}

static void test_allgather(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, gathers, NULL, 0);
}

static void gathers_twice(struct rank *rank) {
  int64_t ids[] = {100 + rank->rank, rank->rank == 0 ? 1 : 4000};
  float values[2 * WIDTH] = {0};
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &tensor_of);
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_ROWS;
  in.nnz = 2;
  in.row_ids = ids;
  in.values = values;
  CHECK_OK(zenps_allgather(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, SOON_MS), ZENPS_ERR_INVALID);
  const zenps_error_t *error = zenps_request_error(request);
  CHECK_SAYS(error->text, "ranks 1 and 2 both gave row 4000");
  CHECK(error->n_missing == 2 && error->missing_ranks[0] == 1 && error->missing_ranks[1] == 2);
  zenps_request_free(request);
  ids[1] = ids[0];
  CHECK_STATUS(zenps_allgather(tensor, 2, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "twice, at positions 0 and 1");
  rank_close(rank);
}

static void test_allgather_of_a_row_twice(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, gathers_twice, NULL, 0);
}

const struct CMUnitTest api_gather_tests[] = {
    cmocka_unit_test(test_allgather),
    cmocka_unit_test(test_allgather_of_a_row_twice),
};
const size_t n_api_gather_tests = sizeof api_gather_tests / sizeof api_gather_tests[0];
