#include "worker/examples/grad.h"

#include <stdlib.h>
#include <string.h>

bool grad_init(struct grad *grad, uint64_t rows, uint32_t width) {
  *grad = (struct grad){.rows = rows, .width = width, .slot_of_row = malloc(rows * sizeof *grad->slot_of_row)};
  if (!grad->slot_of_row) return false;
  for (uint64_t i = 0; i < rows; i++) grad->slot_of_row[i] = -1;
  return true;
}

void grad_fini(struct grad *grad) {
  free(grad->slot_of_row);
  free(grad->row_ids);
  free(grad->values);
}

float *grad_row(struct grad *grad, uint64_t row) {
  int64_t slot = grad->slot_of_row[row];
  if (slot < 0) {
    if (grad->n == grad->capacity) {
      const uint64_t capacity = grad->capacity ? 2 * grad->capacity : 1024;
      int64_t *row_ids = realloc(grad->row_ids, capacity * sizeof *row_ids);
      if (row_ids) grad->row_ids = row_ids;
      float *values = realloc(grad->values, capacity * grad->width * sizeof *values);
      if (values) grad->values = values;
      if (!row_ids || !values) return NULL;
      grad->capacity = capacity;
    }
    slot = grad->slot_of_row[row] = (int64_t)grad->n++;
    grad->row_ids[slot] = (int64_t)row;
    memset(grad->values + (uint64_t)slot * grad->width, 0, grad->width * sizeof *grad->values);
  }
  return grad->values + (uint64_t)slot * grad->width;
}

bool grad_add(struct grad *grad, const struct grad *other) {
  for (uint64_t i = 0; i < other->n; i++) {
    const float *values = other->values + i * other->width;
    float *row = grad_row(grad, (uint64_t)other->row_ids[i]);
    if (!row) return false;
    for (uint32_t k = 0; k < grad->width; k++) row[k] += values[k];
  }
  return true;
}

void grad_clear(struct grad *grad) {
  for (uint64_t i = 0; i < grad->n; i++) grad->slot_of_row[grad->row_ids[i]] = -1;
  grad->n = 0;
}
