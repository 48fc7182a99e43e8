#include "worker/round/row_arrays.h"

#include "worker/api/job.h"
#include "worker/api/tensor.h"

/* What is so many times larger than needed is not used up on a small result. */
#define WASTE_MAX 4u
#define WASTE_BYTES (1u << 20)

void zps_row_arrays_fini(struct zps_row_arrays *arrays) {
  zps_buffer_fini(&arrays->rows);
  zps_buffer_fini(&arrays->values);
}

static void swap_spare(struct zenps_tensor *tensor, bool has_some, struct zps_row_arrays *arrays) {
  pthread_mutex_lock(&tensor->job->lock);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) {
    struct zps_row_arrays *const spare = &tensor->spare_arrays[i];
    if ((spare->rows.data != NULL) != has_some) continue;
    const struct zps_row_arrays other = *spare;
    *spare = *arrays;
    *arrays = other;
    break;
  }
  pthread_mutex_unlock(&tensor->job->lock);
}

static zps_err_t need(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  if (buffer->size_bytes > WASTE_BYTES && buffer->size_bytes / WASTE_MAX / elem_bytes > n) zps_buffer_fini(buffer);
  return zps_buffer_need(buffer, n, elem_bytes);
}

zps_err_t zps_row_arrays_take(struct zenps_tensor *tensor, uint64_t n, struct zps_row_arrays *arrays) {
  *arrays = (struct zps_row_arrays){0};
  swap_spare(tensor, true, arrays);
  zps_err_t err = need(&arrays->rows, n, sizeof(int64_t));
  if (err == ZPS_OK) err = need(&arrays->values, n, tensor->shape.width * (uint64_t)zps_dtype_size(tensor->dtype));
  if (err != ZPS_OK) zps_row_arrays_fini(arrays);
  return err;
}

void zps_row_arrays_give(struct zenps_tensor *tensor, struct zps_row_arrays *arrays) {
  if (arrays->rows.data) swap_spare(tensor, false, arrays);
  zps_row_arrays_fini(arrays);
}
