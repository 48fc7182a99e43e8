#include "worker/tools/gather.h"

#include <stdlib.h>

zenps_status_t zps_gather(zenps_job_t *job, const char *name, uint64_t step, uint32_t width, const double *own,
                          double **all_p) {
  int64_t rank = zenps_rank(job);
  const uint64_t world = (uint64_t)zenps_world(job);
  zenps_tensor_t *tensor;
  zenps_tensor_options_t options;
  zenps_request_t *request = NULL;
  zenps_grad_t in, out;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.values = ZENPS_VALUES_RAW;
  options.scheme = "balanced";
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = ZENPS_ROWS; /* one row per rank: adding them up puts each in its place */
  in.nnz = 1;
  in.row_ids = &rank;
  in.values = (void *)own;
  out.layout = ZENPS_DENSE;
  double *all = out.values = calloc(world * width, sizeof *all);
  if (!all) return ZENPS_ERR_NOMEM;
  zenps_status_t status = zenps_tensor_open(job, name, world, width, ZENPS_F64, &options, &tensor);
  if (status == ZENPS_OK) status = zenps_allreduce(tensor, step, &in, &out, &request);
  if (status == ZENPS_OK) status = zenps_wait(request, -1);
  zenps_request_free(request);
  if (status == ZENPS_OK) {
    *all_p = all;
  } else {
    free(all);
  }
  return status;
}
