/* The end of a selection: what was sent, or what of it is in the result, leaves the residual. */
#include <inttypes.h>

#include "worker/base/error.h"
#include "worker/select/magnitude.h"
#include "worker/sparsify/on_device.h"

static zps_err_t check_result(const struct zenps_sparsifier *sparsifier, const zenps_grad_t *result,
                              struct zps_error *error) {
  const bool selects_nothing = zps_sparsifier_selects_nothing(sparsifier);
  if (!result || result->struct_size < sizeof *result)
    return zps_fail(error, ZPS_ERR_INVALID, "%s",
                    selects_nothing ? "ZENPS_SPARSIFY_SCHEME needs the rows of zenps_request_contributed()"
                                    : "ZENPS_RESIDUAL_GLOBAL needs the result");
  const bool is_dense = result->layout == ZENPS_DENSE && result->values && !selects_nothing;
  if (!is_dense && (result->layout != ZENPS_ROWS || (result->nnz > 0 && !result->row_ids)))
    return zps_fail(error, ZPS_ERR_INVALID, "the result has layout %d and no %s", (int)result->layout,
                    result->layout == ZENPS_ROWS ? "row_ids" : "values");
  if (result->memory == ZENPS_DEVICE && (is_dense || !sparsifier->there))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "the result is %s in device memory: give %s",
                    is_dense ? "dense" : "a list of rows",
                    sparsifier->there ? "one in rows, or in host memory" : "one in host memory");
  return ZPS_OK;
}

/* The rows that the result lists, in host memory. */
static zps_err_t rows_of(struct zenps_sparsifier *sparsifier, const zenps_grad_t *result, const int64_t **rows_p,
                         struct zps_error *error) {
  zps_err_t code = ZPS_OK;
  *rows_p = result->row_ids;
  if (result->memory == ZENPS_DEVICE)
    code = zps_on_device_fetch(sparsifier, ZPS_IDS_OF_RESULT, result->row_ids, result->nnz, rows_p, error);
  for (uint64_t i = 0; code == ZPS_OK && i < result->nnz; i++)
    if ((uint64_t)(*rows_p)[i] >= sparsifier->n)
      code = zps_fail(error, ZPS_ERR_INVALID,
                      "row %" PRId64 " of the result (entry %" PRIu64 ") is none of the %" PRIu64 " rows", (*rows_p)[i],
                      i, sparsifier->n);
  return code;
}

static void take_out(struct zenps_sparsifier *sparsifier, uint64_t id) {
  if (sparsifier->there)
    zps_on_device_list_add(sparsifier, id);
  else
    zps_feedback_clear(&sparsifier->feedback, id);
}

/* Takes out those of the selection that the rows list; the bits are all zero again afterwards. */
static void take_out_listed(struct zenps_sparsifier *sparsifier, const int64_t *picked, const int64_t *rows,
                            uint64_t n_rows) {
  const uint64_t n_picked = sparsifier->picks.n;
  uint64_t *const bits = sparsifier->global_bits;
  for (uint64_t i = 0; i < n_picked; i++) bits[picked[i] / 64] |= 1ull << picked[i] % 64;
  for (uint64_t i = 0; i < n_rows; i++) {
    const uint64_t id = (uint64_t)rows[i], bit = 1ull << id % 64;
    if (!(bits[id / 64] & bit)) continue;
    bits[id / 64] &= ~bit;
    take_out(sparsifier, id);
  }
  for (uint64_t i = 0; i < n_picked; i++) bits[picked[i] / 64] = 0;
}

/* Each entry is taken out once at most, but for a scheme's list, whose length it is. */
static zps_err_t take_out_of_result(struct zenps_sparsifier *sparsifier, const zenps_grad_t *result,
                                    struct zps_error *error) {
  const bool selects_nothing = zps_sparsifier_selects_nothing(sparsifier);
  const struct zps_picks *const picks = &sparsifier->picks;
  const int64_t *rows = NULL, *picked = picks->ids;
  zps_err_t code = check_result(sparsifier, result, error);
  if (code == ZPS_OK && result->layout == ZENPS_ROWS) code = rows_of(sparsifier, result, &rows, error);
  if (code == ZPS_OK && sparsifier->there && !selects_nothing)
    code = zps_on_device_fetch(sparsifier, ZPS_IDS_PICKED, picks->ids, picks->n, &picked, error);
  if (code == ZPS_OK && sparsifier->there)
    code = zps_on_device_list_begin(sparsifier, selects_nothing ? result->nnz : picks->n, error);
  if (code != ZPS_OK) return code;
  if (selects_nothing) {
    for (uint64_t i = 0; i < result->nnz; i++) take_out(sparsifier, (uint64_t)rows[i]);
  } else if (rows || result->layout == ZENPS_ROWS) {
    take_out_listed(sparsifier, picked, rows, result->nnz);
  } else {
    for (uint64_t i = 0; i < picks->n; i++)
      if (zps_magnitude_at(sparsifier->dtype, result->values, (uint64_t)picked[i]))
        take_out(sparsifier, (uint64_t)picked[i]);
  }
  return sparsifier->there ? zps_on_device_list_clear(sparsifier, error) : ZPS_OK;
}

zenps_status_t zenps_sparsifier_commit(zenps_sparsifier_t *sparsifier, const zenps_grad_t *result) {
  if (!sparsifier || !sparsifier->selected)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_commit: there is no selection to commit");
  struct zps_error error;
  zps_err_t code = ZPS_OK;
  const struct zps_picks *const picks = &sparsifier->picks;
  if (zps_sparsifier_selects_nothing(sparsifier) || sparsifier->options.residual == ZENPS_RESIDUAL_GLOBAL)
    code = take_out_of_result(sparsifier, result, &error);
  else if (sparsifier->there)
    code = zps_on_device_clear_picks(sparsifier, &error);
  else
    for (uint64_t i = 0; i < picks->n; i++) zps_feedback_clear(&sparsifier->feedback, (uint64_t)picks->ids[i]);
  if (code != ZPS_OK) return zps_worker_fail(code, "zenps_sparsifier_commit: %s", error.text);
  sparsifier->selected = false;
  return ZENPS_OK;
}

zenps_status_t zenps_sparsifier_cancel(zenps_sparsifier_t *sparsifier) {
  if (!sparsifier || !sparsifier->selected)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_cancel: there is no selection to cancel");
  sparsifier->selected = false;
  return ZENPS_OK;
}
