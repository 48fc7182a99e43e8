#include <string.h>

#include "common/codec/encode_impl.h"

#define NO_MEMORY "no memory to sort a gradient's rows into %u partitions"

zps_err_t zps_encoder_create(enum zps_partitioner partitioner, struct zps_encoder **encoder_p) {
  struct zps_encoder *const encoder = calloc(1, sizeof *encoder);
  if (!encoder) return ZPS_ERR_NOMEM;
  encoder->partitioner = partitioner;
  *encoder_p = encoder;
  return ZPS_OK;
}

void zps_encoder_destroy(struct zps_encoder *encoder) {
  if (!encoder) return;
  struct zps_buffer *const buffers[] = {
      &encoder->starts,  &encoder->nnz,          &encoder->sums,    &encoder->counts,  &encoder->bad,
      &encoder->pairs,   &encoder->scratch,      &encoder->repeats, &encoder->indices, &encoder->partitioned,
      &encoder->buckets, &encoder->accumulators, &encoder->wide,    &encoder->marks};
  for (unsigned i = 0; i < sizeof buffers / sizeof buffers[0]; i++) zps_buffer_fini(buffers[i]);
  for (unsigned i = 0; i < ZPS_PARTITION_STRIPES_MAX; i++) {
    zps_buffer_fini(&encoder->lists[i].indices);
    zps_buffer_fini(&encoder->lists[i].sources);
    zps_buffer_fini(&encoder->lists[i].staged);
  }
  for (unsigned i = 0; i < encoder->n_found; i++) {
    zps_buffer_fini(&encoder->found[i].parts);
    zps_buffer_fini(&encoder->found[i].indices);
    zps_buffer_fini(&encoder->found[i].items);
  }
  free(encoder->found);
  free(encoder);
}

uint32_t zps_encoder_scans(const struct zps_encode_input *input) {
  return zps_encode_input_is_list(input) || input->all_rows ? 1 : zps_partition_stripes(input->part);
}

/* What sources are, too. */
static void name_sections(struct zps_encoder *encoder) {
  const struct zps_encode_input *const input = &encoder->input;
  const bool by_number = encoder->partitioner == ZPS_PARTITIONER_HIERARCHICAL;
  encoder->one = (struct zps_section){.n_rows = input->part->rows,
                                      .values = (void *)(uintptr_t)input->values,
                                      .rows = input->rows,
                                      .n_entries = input->n_entries};
  encoder->sections = (struct zps_sections){.list = &encoder->one, .n = 1};
  zps_sections_count(&encoder->sections);
  if (input->sections) encoder->sections = *input->sections;
  encoder->source_at = by_number ? (uintptr_t)input->values : 0;
  encoder->source_bytes = by_number ? encoder->row_bytes : 1;
}

zps_err_t zps_encoder_begin(struct zps_encoder *encoder, const struct zps_encode_input *input,
                            struct zps_workpool *pool, struct zps_error *error) {
  encoder->input = *input;
  encoder->pool = pool;
  encoder->row_bytes = zps_row_bytes(input->width, input->dtype);
  encoder->sum_bytes = zps_row_bytes(input->width, zps_dtype_sum(input->dtype));
  encoder->total_nnz = 0;
  encoder->hashed = (struct zps_hier_stats){0};
  encoder->n_parts = 0;
  encoder->n_scans = zps_encoder_scans(input);
  encoder->scan_parts = input->part->n_parts / encoder->n_scans;
  encoder->is_whole = encoder->is_whole_sum = false;
  name_sections(encoder);
  if (encoder->row_bytes == 0 || !zps_values_suit(input->value_codec, input->dtype))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "rows of %u elements of dtype %d as %s: there must be an element, a dtype, and a codec for it",
                    input->width, (int)input->dtype, zps_values_name(input->value_codec));
  if (input->sections && encoder->partitioner == ZPS_PARTITIONER_HIERARCHICAL)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "Algorithm 1 deals out the rows of one array, not of %u sections",
                    input->sections->n);
  const uint32_t n_parts = input->part->n_parts;
  zps_err_t code = zps_buffer_need(&encoder->starts, n_parts + 1ull, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->nnz, n_parts, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->wide, n_parts, 1);
  if (code == ZPS_OK && !zps_encode_input_is_list(input) && !input->all_rows) code = zps_encoder_begin_dense(encoder);
  if (code != ZPS_OK) return zps_fail(error, code, NO_MEMORY, n_parts);
  memset(encoder->nnz.data, 0, n_parts * sizeof(uint32_t));
  memset(encoder->wide.data, 0, n_parts);
  encoder->n_parts = n_parts;
  return ZPS_OK;
}

static zps_err_t scan_rows(struct zps_encoder *encoder, struct zps_error *error) {
  switch (encoder->way.method) {
    case ZPS_ENCODE_ALL:
      return zps_encoder_scan_all(encoder, error);
    case ZPS_ENCODE_DENSE:
      return zps_encoder_scan_dense(encoder);
    case ZPS_ENCODE_FEW:
      return zps_encoder_scan_few(encoder, error);
    case ZPS_ENCODE_SINGLES:
      return zps_encoder_scan_singles(encoder, error);
    case ZPS_ENCODE_COO:
      break;
  }
  return zps_encoder_scan_coo(encoder, error);
}

zps_err_t zps_encoder_scan_next(struct zps_encoder *encoder, uint32_t scan, struct zps_error *error) {
  const struct zps_encode_input *const input = &encoder->input;
  encoder->scan = scan;
  encoder->first_part = scan * encoder->scan_parts;
  encoder->scan_part = encoder->n_scans > 1 ? zps_partition_stripe(input->part, scan) : *input->part;
  encoder->way = zps_encoder_way(input, encoder->partitioner);
  const zps_err_t code = scan_rows(encoder, error);
  uint32_t *const nnz = (uint32_t *)encoder->nnz.data + encoder->first_part;
  if (code != ZPS_OK) {
    memset(nnz, 0, encoder->scan_parts * sizeof *nnz);
    return code == ZPS_ERR_NOMEM ? zps_fail(error, code, NO_MEMORY, encoder->n_parts) : code;
  }
  for (uint32_t p = 0; p < encoder->scan_parts; p++) encoder->total_nnz += nnz[p];
  return ZPS_OK;
}

zps_err_t zps_encoder_scan(struct zps_encoder *encoder, const struct zps_encode_input *input, struct zps_workpool *pool,
                           struct zps_error *error) {
  zps_err_t code = zps_encoder_begin(encoder, input, pool, error);
  for (uint32_t scan = 0; code == ZPS_OK && scan < encoder->n_scans; scan++)
    code = zps_encoder_scan_next(encoder, scan, error);
  if (code == ZPS_OK) return ZPS_OK;
  encoder->n_parts = 0;
  encoder->total_nnz = 0;
  return code;
}

uint64_t zps_encoder_total_nnz(const struct zps_encoder *encoder) {
  return encoder->total_nnz;
}

static inline __attribute__((always_inline)) const char *row_at(const struct zps_encoder *encoder, uint64_t source,
                                                                uint64_t row_bytes) {
  const char *const sums = encoder->sums.data;
  return source & ZPS_ENCODE_SUM_BIT ? sums + (source ^ ZPS_ENCODE_SUM_BIT) * row_bytes
                                     : zps_encoder_source(encoder, source);
}

static inline __attribute__((always_inline)) void gather(const struct zps_encoder *encoder, const uint64_t *sources,
                                                         uint32_t z, uint64_t row_bytes, char *out) {
  for (uint32_t i = 0; i < z; i++, out += row_bytes) memcpy(out, row_at(encoder, sources[i], row_bytes), row_bytes);
}

struct zps_hier_stats zps_encoder_hashed(const struct zps_encoder *encoder) {
  return encoder->hashed;
}

static const struct zps_encode_lists *lists_of(const struct zps_encoder *encoder, uint32_t p) {
  return &encoder->lists[p / encoder->scan_parts];
}

/* Rows that lie one after the other. */
struct rows {
  const char *at;
  uint32_t n;
  bool are_sums; /* of sum_bytes each */
};

/* The first of rows [first, first + n) of partition `p`'s list that starts at `start`. */
static struct rows rows_from(const struct zps_encoder *encoder, uint32_t p, uint64_t start, uint32_t first,
                             uint32_t n) {
  if (encoder->is_whole) {
    struct rows rows = {.are_sums = encoder->is_whole_sum};
    rows.at = zps_encoder_run(encoder, p, first, n, &rows.n);
    return rows;
  }
  if (encoder->is_staged)
    return (struct rows){(const char *)lists_of(encoder, p)->staged.data + (start + first) * encoder->row_bytes, n,
                         false};
  const uint64_t source = ((const uint64_t *)lists_of(encoder, p)->sources.data)[start + first];
  if (source & ZPS_ENCODE_SUM_BIT)
    return (struct rows){(const char *)encoder->sums.data + (source ^ ZPS_ENCODE_SUM_BIT) * encoder->sum_bytes, 1,
                         true};
  return (struct rows){zps_encoder_source(encoder, source), 1, false};
}

/* Rows of halves, and sums of them: as floats where the slice is wide, else as halves. */
static void copy_halves(const struct zps_encoder *encoder, uint32_t p, uint64_t start, uint32_t first, uint32_t n,
                        char *out) {
  const struct zps_encode_input *const input = &encoder->input;
  const bool is_wide = zps_encoder_value_codec(encoder, p) == ZPS_VALUES_RAW;
  const uint64_t to_bytes = is_wide ? encoder->sum_bytes : encoder->row_bytes;
  for (uint32_t i = 0, run; i < n; i += run, out += run * to_bytes) {
    const struct rows rows = rows_from(encoder, p, start, first + i, n - i);
    run = rows.n;
    if (rows.are_sums == is_wide)
      memcpy(out, rows.at, run * to_bytes);
    else if (is_wide)
      zps_values_widen(input->dtype, rows.at, (uint64_t)run * input->width, out);
    else /* without loss */
      zps_values_narrow(input->dtype, rows.at, (uint64_t)run * input->width, out);
  }
}

/* Copies rows [first, first + n) of partition `p`'s list that starts at `start`; n > 0. */
static void copy_rows(const struct zps_encoder *encoder, uint32_t p, uint64_t start, uint32_t first, uint32_t n,
                      char *out) {
  const uint64_t row_bytes = encoder->row_bytes;
  if (zps_dtype_is_half(encoder->input.dtype)) {
    copy_halves(encoder, p, start, first, n, out);
    return;
  }
  if (encoder->is_whole) {
    for (uint32_t run; n > 0; first += run, n -= run, out += run * row_bytes) {
      const char *const rows = zps_encoder_run(encoder, p, first, n, &run);
      memcpy(out, rows, run * row_bytes);
    }
    return;
  }
  if (encoder->is_staged) {
    memcpy(out, (const char *)lists_of(encoder, p)->staged.data + (start + first) * row_bytes, n * row_bytes);
    return;
  }
  const uint64_t *const sources = (const uint64_t *)lists_of(encoder, p)->sources.data + start + first;
  switch (row_bytes) {
    case 4:
      gather(encoder, sources, n, 4, out);
      break;
    case 8:
      gather(encoder, sources, n, 8, out);
      break;
    default:
      gather(encoder, sources, n, row_bytes, out);
  }
}

const uint32_t *zps_encoder_indices(const struct zps_encoder *encoder, uint32_t p) {
  if (zps_encoder_nnz(encoder, p) == 0) return NULL; /* without rows the buffers may not exist */
  return (const uint32_t *)lists_of(encoder, p)->indices.data + ((const uint64_t *)encoder->starts.data)[p];
}

void zps_encoder_values(const struct zps_encoder *encoder, uint32_t p, uint32_t first, uint32_t n, void *out) {
  if (n > 0) copy_rows(encoder, p, ((const uint64_t *)encoder->starts.data)[p], first, n, out);
}

/* Codes halves, and sums of them, as the floats that they are. */
static void code_halves(const struct zps_encoder *encoder, uint32_t p, uint64_t start, uint32_t z,
                        struct zps_values_writer *writer) {
  const struct zps_encode_input *const input = &encoder->input;
  for (uint32_t i = 0; i < z;) {
    const struct rows rows = rows_from(encoder, p, start, i, z - i);
    if (rows.are_sums)
      zps_values_writer_put(writer, rows.at, (uint64_t)rows.n * input->width);
    else
      zps_values_writer_put_halves(writer, input->dtype, rows.at, (uint64_t)rows.n * input->width);
    i += rows.n;
  }
}

/* Codes the values on the way, as many rows at a time as fit here, or single ones. */
static void code_rows(const struct zps_encoder *encoder, uint32_t p, uint64_t start, uint32_t z, void *out) {
  enum { ROOM = 4096 };
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t row_bytes = encoder->row_bytes;
  struct zps_values_writer writer;
  double room[ROOM / sizeof(double)];
  zps_values_writer_init(&writer, input->value_codec, zps_dtype_sum(input->dtype), (uint64_t)z * input->width,
                         zps_values_key(&input->origin, p), out);
  if (zps_dtype_is_half(input->dtype)) {
    code_halves(encoder, p, start, z, &writer);
  } else if (encoder->is_whole) {
    for (uint32_t i = 0, n; i < z; i += n) {
      const char *const rows = zps_encoder_run(encoder, p, i, z - i, &n);
      zps_values_writer_put(&writer, rows, (uint64_t)n * input->width);
    }
  } else if (encoder->is_staged) {
    const char *const staged = lists_of(encoder, p)->staged.data;
    zps_values_writer_put(&writer, staged + start * row_bytes, (uint64_t)z * input->width);
  } else if (row_bytes <= ROOM / 16) {
    const uint32_t at_once = (uint32_t)(ROOM / row_bytes);
    for (uint32_t i = 0, n; i < z; i += n) {
      n = z - i < at_once ? z - i : at_once;
      copy_rows(encoder, p, start, i, n, (char *)room);
      zps_values_writer_put(&writer, room, (uint64_t)n * input->width);
    }
  } else {
    const uint64_t *const sources = (const uint64_t *)lists_of(encoder, p)->sources.data + start;
    for (uint32_t i = 0; i < z; i++)
      zps_values_writer_put(&writer, row_at(encoder, sources[i], row_bytes), input->width);
  }
  zps_values_writer_end(&writer);
}

void zps_encoder_write(const struct zps_encoder *encoder, uint32_t p, enum zps_codec codec, void *out) {
  const uint32_t m = zps_partition_size(encoder->input.part, p), z = zps_encoder_nnz(encoder, p);
  const uint64_t start = ((const uint64_t *)encoder->starts.data)[p];
  const uint32_t *const indices = zps_encoder_indices(encoder, p);
  const struct zps_encode_input *const input = &encoder->input;
  const enum zps_value_codec value_codec = zps_encoder_value_codec(encoder, p);
  const uint64_t n_values = (uint64_t)z * input->width;
  const uint64_t values_bytes = zps_values_bytes(value_codec, zps_dtype_sum(input->dtype), n_values);
  if (z > 0 && zps_values_are_plain(value_codec, input->dtype)) {
    copy_rows(encoder, p, start, 0, z, out);
    zps_values_pad(value_codec, n_values, out);
  } else if (z > 0) {
    code_rows(encoder, p, start, z, out);
  }
  zps_codec_index_encode(codec, m, indices, z, (char *)out + values_bytes);
}
