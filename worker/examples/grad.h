/* A gradient with few non-zero rows: the rows in order of first touch, and their values. */
#ifndef ZPS_EXAMPLES_GRAD_H
#define ZPS_EXAMPLES_GRAD_H

#include <stdbool.h>
#include <stdint.h>

struct grad {
  uint64_t rows, n;
  uint32_t width;
  uint64_t capacity;
  int64_t *row_ids;
  float *values;
  int64_t *slot_of_row; /* -1: not touched since grad_clear() */
};

/* False where memory is short; grad_fini() is allowed after that, too. */
bool grad_init(struct grad *grad, uint64_t rows, uint32_t width);
void grad_fini(struct grad *grad);
/* The accumulator of `row`: `width` values, zero at first touch. NULL when memory is short. */
float *grad_row(struct grad *grad, uint64_t row);
/* Adds another gradient of the same shape, row by row in its order. False where memory is short. */
bool grad_add(struct grad *grad, const struct grad *other);
/* Takes time for the rows that were touched alone. */
void grad_clear(struct grad *grad);

#endif
