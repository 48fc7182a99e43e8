#include "worker/api/grad_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/rowscan.h"

static uint64_t row_bytes(const struct zenps_tensor *tensor) {
  return zps_row_bytes(tensor->core.shape.width, tensor->core.shape.dtype);
}

/* ------------------------------------------------------------ checks */

static zps_err_t check_arrays(const char *tensor, const char *which, uint32_t i, const zenps_part_t *part, bool is_out,
                              struct zps_error *error) {
  const bool any = part->row_ids || part->values, both = part->row_ids && part->values;
  if (part->layout == ZENPS_DENSE) {
    if (part->values || part->n_rows == 0) return ZPS_OK;
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->parts[%" PRIu32 "].values is NULL; dense needs its %" PRIu64 " rows", tensor, which,
                    i, part->n_rows);
  }
  if (is_out ? both || !any : both || part->nnz == 0) return ZPS_OK;
  if (is_out)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: of %s->parts[%" PRIu32 "].row_ids and values one is NULL; give both arrays, or none",
                    tensor, which, i);
  return zps_fail(error, ZPS_ERR_INVALID,
                  "tensor %s: %s->parts[%" PRIu32 "].nnz is %" PRIu64 ", but row_ids or values is NULL", tensor, which,
                  i, part->nnz);
}

/* `end`: of the parts before. */
static zps_err_t check_part(const struct zenps_tensor *tensor, const char *which, uint32_t i, const zenps_part_t *part,
                            uint64_t end, bool is_out, struct zps_error *error) {
  const char *const name = tensor->core.name;
  const uint64_t rows = tensor->core.shape.rows;
  if (part->struct_size < sizeof *part)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->parts[%" PRIu32 "].struct_size is %zu; it must be sizeof(zenps_part_t)", name,
                    which, i, part->struct_size);
  if (part->layout != ZENPS_DENSE && part->layout != ZENPS_ROWS)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->parts[%" PRIu32 "].layout is %d, none of ZENPS_DENSE, ZENPS_ROWS", name, which, i,
                    (int)part->layout);
  if (part->row_base > rows || part->n_rows > rows - part->row_base)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->parts[%" PRIu32 "] is %" PRIu64 " rows from row %" PRIu64
                    " on, but the tensor has %" PRIu64,
                    name, which, i, part->n_rows, part->row_base, rows);
  if (part->row_base < end)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->parts[%" PRIu32 "] begins at row %" PRIu64
                    ", but the one before ends at row %" PRIu64 ": parts ascend and do not overlap",
                    name, which, i, part->row_base, end);
  return check_arrays(name, which, i, part, is_out, error);
}

zps_err_t zps_grad_parts_check(const struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out,
                               struct zps_error *error) {
  const char *const which = is_out ? "out" : "in";
  uint64_t end = 0;
  if (!grad->parts)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->n_parts is %" PRIu32 ", but parts is NULL",
                    tensor->core.name, which, grad->n_parts);
  if (grad->memory != ZENPS_HOST)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: %s->parts are in device memory, where there must be one array: give it as one, or in "
                    "host memory",
                    tensor->core.name, which);
  for (uint32_t i = 0; i < grad->n_parts; i++) {
    const zps_err_t code = check_part(tensor, which, i, &grad->parts[i], end, is_out, error);
    if (code != ZPS_OK) return code;
    end = grad->parts[i].row_base + grad->parts[i].n_rows;
  }
  return ZPS_OK;
}

/* ------------------------------------------------------------ where they are */

static bool reads_in_place(const struct zenps_tensor *tensor) {
  const struct zps_round_tensor *const core = &tensor->core;
  return !tensor->is_automatic && core->served && !core->served->blocks &&
         core->partitioner != ZPS_PARTITIONER_HIERARCHICAL;
}

static zps_err_t list_sections(const zenps_grad_t *grad, struct zps_sections *sections) {
  static const int64_t no_rows[1];
  sections->list = calloc(grad->n_parts, sizeof *sections->list);
  if (!sections->list) return ZPS_ERR_NOMEM;
  sections->n = grad->n_parts;
  for (uint32_t i = 0; i < grad->n_parts; i++) {
    const zenps_part_t *const part = &grad->parts[i];
    struct zps_section *const section = &sections->list[i];
    *section = (struct zps_section){.first_row = part->row_base, .n_rows = part->n_rows, .values = part->values};
    if (part->layout == ZENPS_DENSE) continue;
    section->rows = part->nnz ? part->row_ids : no_rows;
    section->n_entries = part->nnz;
  }
  zps_sections_count(sections);
  return ZPS_OK;
}

static void drop_sections(struct zps_sections *sections) {
  free(sections->list);
  sections->list = NULL;
}

/* ------------------------------------------------------------ copied to one array */

/* A row number that its part does not have must not become another part's. */
static int64_t row_of(const struct zps_section *section, uint64_t i) {
  const uint64_t row = (uint64_t)section->rows[i];
  return row < section->n_rows ? (int64_t)(section->first_row + row) : -1;
}

/* Entries, and the rows of dense sections that are not zero. */
static void gather_list(struct zps_grad_parts *parts, const struct zps_sections *sections,
                        const struct zps_tensor_shape *shape) {
  const uint64_t bytes = zps_row_bytes(shape->width, shape->dtype);
  uint64_t n = 0;
  for (uint32_t k = 0; k < sections->n; k++) {
    const struct zps_section *const section = &sections->list[k];
    for (uint64_t i = 0; i < section->n_entries; i++) {
      const char *const row = (const char *)section->values + i * bytes;
      if (!section->rows && zps_rowscan_is_zero(shape->dtype, shape->width, row)) continue;
      parts->row_ids[n] = section->rows ? row_of(section, i) : (int64_t)(section->first_row + i);
      memcpy((char *)parts->values + n++ * bytes, row, bytes);
    }
  }
  parts->one_in.nnz = n;
  parts->copied_bytes += n * (bytes + sizeof *parts->row_ids);
}

static zps_err_t gather(struct zps_grad_parts *parts, const struct zps_tensor_shape *shape) {
  struct zps_sections *const sections = &parts->in_sections;
  const uint64_t bytes = zps_row_bytes(shape->width, shape->dtype);
  const uint64_t n = sections->are_dense ? shape->rows : sections->n_entries + 1;
  parts->values = calloc(n, bytes);
  if (!sections->are_dense) parts->row_ids = calloc(n, sizeof *parts->row_ids);
  if (!parts->values || (!sections->are_dense && !parts->row_ids)) return ZPS_ERR_NOMEM;
  if (!sections->are_dense) gather_list(parts, sections, shape);
  for (uint32_t k = 0; sections->are_dense && k < sections->n; k++) {
    const struct zps_section *const section = &sections->list[k];
    if (section->n_rows == 0) continue;
    memcpy((char *)parts->values + section->first_row * bytes, section->values, section->n_rows * bytes);
    parts->copied_bytes += section->n_rows * bytes;
  }
  parts->one_in.row_ids = parts->row_ids;
  parts->one_in.values = parts->values;
  return ZPS_OK;
}

/* ------------------------------------------------------------ made ready */

static zps_err_t begin_in(struct zps_grad_parts *parts, const struct zenps_tensor *tensor, const zenps_grad_t *in) {
  zps_err_t code = list_sections(in, &parts->in_sections);
  ZENPS_GRAD_INIT(&parts->one_in);
  parts->in = &parts->one_in;
  parts->one_in.layout = parts->in_sections.are_dense ? ZENPS_DENSE : ZENPS_ROWS;
  parts->one_in.nnz = parts->in_sections.n_entries;
  parts->one_in.contributes = in->contributes || parts->in_sections.n_entries > 0;
  if (code != ZPS_OK || reads_in_place(tensor)) return code;
  code = gather(parts, &tensor->core.shape);
  drop_sections(&parts->in_sections);
  return code;
}

/* A result of which some parts are lists is made as one. */
static zps_err_t begin_out(struct zps_grad_parts *parts, const struct zenps_tensor *tensor, zenps_grad_t *out) {
  bool are_dense = true;
  for (uint32_t i = 0; i < out->n_parts; i++) are_dense = are_dense && out->parts[i].layout == ZENPS_DENSE;
  ZENPS_GRAD_INIT(&parts->one_out);
  parts->out = &parts->one_out;
  parts->result = out;
  parts->one_out.layout = are_dense ? ZENPS_DENSE : ZENPS_ROWS;
  if (are_dense && reads_in_place(tensor)) return list_sections(out, &parts->out_sections);
  parts->split = (struct zps_out_parts){.parts = out->parts, .n = out->n_parts};
  if (!are_dense) return ZPS_OK;
  if (parts->one_in.layout == ZENPS_DENSE && parts->values) { /* in place */
    parts->one_out.values = parts->values;
    return ZPS_OK;
  }
  parts->one_out.values = parts->dense = calloc(tensor->core.shape.rows, row_bytes(tensor));
  return parts->dense ? ZPS_OK : ZPS_ERR_NOMEM;
}

zps_err_t zps_grad_parts_create(const struct zenps_tensor *tensor, const zenps_grad_t *in, zenps_grad_t *out,
                                struct zps_grad_parts **parts_p, struct zps_error *error) {
  const bool has_in = in && in->n_parts > 0, has_out = out && out->n_parts > 0;
  *parts_p = NULL;
  if (!has_in && !has_out) return ZPS_OK;
  struct zps_grad_parts *const parts = calloc(1, sizeof *parts);
  zps_err_t code = parts ? ZPS_OK : ZPS_ERR_NOMEM;
  if (parts) {
    parts->in = in;
    parts->out = out;
  }
  if (code == ZPS_OK && has_in) code = begin_in(parts, tensor, in);
  if (code == ZPS_OK && has_out) code = begin_out(parts, tensor, out);
  if (code == ZPS_OK) {
    *parts_p = parts;
    return ZPS_OK;
  }
  zps_grad_parts_destroy(parts);
  return zps_fail(error, code, "tensor %s: no memory for the parts of a gradient or result", tensor->core.name);
}

void zps_grad_parts_done(struct zps_grad_parts *parts) {
  if (!parts->result) return;
  parts->result->nnz = parts->out->nnz;
  parts->result->contributors = parts->out->contributors;
}

void zps_grad_parts_destroy(struct zps_grad_parts *parts) {
  if (!parts) return;
  drop_sections(&parts->in_sections);
  drop_sections(&parts->out_sections);
  free(parts->dense);
  free(parts->row_ids);
  free(parts->values);
  free(parts);
}
