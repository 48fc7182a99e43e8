#include "worker/tools/perf_arrays.h"

#include <stdlib.h>
#include <string.h>

#include "worker/tools/perf_array.h"

static zps_err_t init_there(struct perf_arrays *arrays, struct zps_error *error) {
  const struct perf *const perf = arrays->perf;
  zenps_grad_t *const out = &arrays->out_there.grad;
  *out = arrays->out;
  out->values = NULL;
  zps_gpu_mark(perf->gpu, out);
  if (perf->options.out != PERF_DENSE) return ZPS_OK;
  return zps_gpu_reserve(perf->gpu, &arrays->out_there, perf->rows, arrays->row_bytes, error);
}

zps_err_t perf_arrays_init(struct perf_arrays *arrays, const struct perf *perf, struct zps_error *error) {
  const struct perf_options *const options = &perf->options;
  zenps_grad_t *const in = &arrays->in, *const out = &arrays->out;
  uint64_t entries = perf->rows;
  *arrays = (struct perf_arrays){.perf = perf, .row_bytes = options->width * perf->value_bytes};
  ZENPS_GRAD_INIT(in);
  ZENPS_GRAD_INIT(out);
  in->layout = options->layout == 0 ? ZENPS_DENSE : ZENPS_ROWS;
  out->layout = options->out == PERF_ROWS ? ZENPS_ROWS : ZENPS_DENSE;
  if (in->layout == ZENPS_ROWS) {
    entries = perf->rows * options->duplicates;
    in->row_ids = perf_array_alloc(entries, sizeof *in->row_ids);
  }
  in->values = perf_array_alloc(entries, arrays->row_bytes);
  if (options->out == PERF_IN_PLACE) out->values = in->values;
  if (options->out == PERF_DENSE && !perf->gpu) out->values = perf_array_alloc(perf->rows, arrays->row_bytes);
  zps_err_t code = ZPS_OK;
  if (!in->values || (in->layout == ZENPS_ROWS && !in->row_ids) ||
      (out->layout == ZENPS_DENSE && !out->values && !perf->gpu))
    code = zps_fail(error, ZPS_ERR_NOMEM, "out of memory for %llu rows of %zu bytes", (unsigned long long)perf->rows,
                    arrays->row_bytes);
  else if (in->layout == ZENPS_DENSE)
    memset(in->values, 0, perf->rows * arrays->row_bytes);
  if (code == ZPS_OK && perf->gpu) code = init_there(arrays, error);
  if (code == ZPS_OK && options->parts > 1)
    code = perf_parts_init(&arrays->parts, (uint32_t)options->parts, perf->rows, arrays->row_bytes, in, entries, error);
  if (code != ZPS_OK) perf_arrays_fini(arrays);
  return code;
}

void perf_arrays_fini(struct perf_arrays *arrays) {
  zps_gpu_release(arrays->perf->gpu, &arrays->in_there);
  zps_gpu_release(arrays->perf->gpu, &arrays->out_there);
  zps_gpu_free(&arrays->result);
  perf_parts_fini(&arrays->parts);
  free(arrays->in.row_ids);
  free(arrays->in.values);
  if (arrays->perf->options.out != PERF_IN_PLACE) free(arrays->out.values);
}

zps_err_t perf_arrays_bring(struct perf_arrays *arrays, struct zps_error *error) {
  const struct perf *const perf = arrays->perf;
  if (arrays->parts.n) perf_parts_cut(&arrays->parts, &arrays->in);
  if (!perf->gpu) return ZPS_OK;
  const uint64_t n = arrays->in.layout == ZENPS_ROWS ? arrays->in.nnz : perf->rows;
  const zps_err_t code = zps_gpu_send(perf->gpu, &arrays->in, n, arrays->row_bytes, &arrays->in_there, error);
  return code == ZPS_OK ? zps_gpu_wait(perf->gpu, error) : code;
}

const zenps_grad_t *perf_arrays_in(const struct perf_arrays *arrays) {
  if (arrays->parts.n) return &arrays->parts.in_grad;
  return arrays->perf->gpu ? &arrays->in_there.grad : &arrays->in;
}

zenps_grad_t perf_arrays_out(struct perf_arrays *arrays) {
  if (!arrays->perf->gpu) {
    zenps_grad_t here = arrays->out;
    if (arrays->parts.n) perf_parts_out(&arrays->parts, &here);
    return here;
  }
  zenps_grad_t out = arrays->out_there.grad;
  if (arrays->perf->options.out == PERF_IN_PLACE) out.values = arrays->in_there.grad.values;
  return out;
}

zps_err_t perf_arrays_result(struct perf_arrays *arrays, zenps_grad_t *out, const zenps_grad_t **result_p,
                             struct zps_error *error) {
  const struct perf *const perf = arrays->perf;
  *result_p = out;
  if (arrays->parts.n) return perf_parts_join(&arrays->parts, out, error);
  if (!perf->gpu) return ZPS_OK;
  const uint64_t n = out->layout == ZENPS_ROWS ? out->nnz : perf->rows;
  *result_p = &arrays->result.grad;
  return zps_gpu_fetch(perf->gpu, out, n, arrays->row_bytes, &arrays->result, error);
}
