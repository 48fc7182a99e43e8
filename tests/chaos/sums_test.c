/* The check of sums: finds each bit that is not right. Run by tests/chaos/selftest.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/chaos/sums.h"

enum { WORLD = 3, ROWS = 40, STRIPS = 8, WIDTH = 2 };

#define MUST(what)                                               \
  do {                                                           \
    if (!(what)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
      exit(1);                                                   \
    }                                                            \
  } while (0)

static const struct sums_of of = {.seed = 7, .step = 3, .tensor = 1, .world = WORLD};

/* The plain sum, of all rows; `has` says which rows some rank has. */
static void sum(const struct sums_spec *spec, float total[ROWS][WIDTH], bool has[ROWS]) {
  memset(total, 0, sizeof(float[ROWS][WIDTH]));
  memset(has, 0, sizeof(bool[ROWS]));
  for (int rank = 0; rank < WORLD; rank++) {
    struct sums_spec as_list = *spec;
    as_list.is_dense = false;
    int64_t rows[STRIPS];
    float values[STRIPS][WIDTH];
    zenps_grad_t grad = {.row_ids = rows, .values = values};
    sums_gradient(&as_list, &of, rank, &grad);
    for (int i = 0; i < STRIPS; i++) {
      has[rows[i]] = true;
      for (int k = 0; k < WIDTH; k++) total[rows[i]][k] += values[i][k];
    }
  }
}

static bool is_right(const struct sums_spec *spec, const zenps_grad_t *result) {
  char what[160] = "";
  uint64_t digest;
  const bool right = sums_check(spec, &of, result, &digest, what, sizeof what);
  MUST(right == !what[0]);
  return right;
}

/* Each bit of the values matters. */
static void flip_bits(const struct sums_spec *spec, const zenps_grad_t *result, size_t n_values) {
  for (size_t i = 0; i < n_values * sizeof(float); i++) {
    ((unsigned char *)result->values)[i] ^= 1;
    MUST(!is_right(spec, result));
    ((unsigned char *)result->values)[i] ^= 1;
  }
  MUST(is_right(spec, result));
}

int main(void) {
  const struct sums_spec list = {.rows = ROWS, .n_strips = STRIPS, .width = WIDTH},
                         dense = {.rows = ROWS, .n_strips = STRIPS, .width = WIDTH, .is_dense = true};
  float total[ROWS][WIDTH], values[ROWS][WIDTH];
  int64_t rows[ROWS];
  bool has[ROWS];
  sum(&list, total, has);
  zenps_grad_t result = {.layout = ZENPS_ROWS, .row_ids = rows, .values = values};
  for (int64_t row = 0; row < ROWS; row++) {
    if (!has[row]) continue;
    rows[result.nnz] = row;
    memcpy(values[result.nnz++], total[row], sizeof total[row]);
  }
  MUST(result.nnz > STRIPS && result.nnz < ROWS);
  flip_bits(&list, &result, result.nnz * WIDTH);
  result.nnz--;
  MUST(!is_right(&list, &result));
  result.nnz += 2;
  MUST(!is_right(&list, &result));
  result.nnz--;
  rows[1]++;
  MUST(!is_right(&list, &result));

  result = (zenps_grad_t){.layout = ZENPS_DENSE, .values = total};
  flip_bits(&dense, &result, (size_t)ROWS * WIDTH);
  return 0;
}
