/* Decoding: tables for the kernels, and the order of these. */
#include <new>

#include "gpu/cuda/device.cuh"

struct zps_device_decoder {
  zps::Device *device;
  zps::Scratch scratch;
  zps::Table table;
  struct Report {
    zps::u32 bad;
  } * report;             /* pinned */
  zps_device_view *views; /* of the last call, in pinned memory behind the report */
  zps::u32 views_max;
};

namespace zps {

/* In the table: the views, then the starts of one kind after the other. */
zps_err_t reading_open(Reading *reading, Table *table, const zps_partition &part, u32 width, enum zps_dtype dtype,
                       const zps_device_view *views, u32 n_views, cudaStream_t stream, zps_error *error) {
  enum { KINDS = 5 };
  *reading = Reading();
  reading->part = zps_partition_on_device(part);
  reading->width = width;
  reading->dtype = dtype;
  reading->value_bytes = value_size(dtype);
  reading->is_raw = true;
  reading->codecs = 0;
  reading->n_views = n_views;
  if (zps_partition_is_hashed(&part) && !part.table.on_device.ranks)
    return zps_fail(error, ZPS_ERR_INVALID, "the table of %llu hashed rows is not on the device",
                    static_cast<u64>(part.rows));
  for (u32 v = 0; v < n_views; v++) {
    if (views[v].partition >= part.n_parts)
      return zps_fail(error, ZPS_ERR_INVALID, "view %u is of partition %u: there are %u", v, views[v].partition,
                      part.n_parts);
    if (views[v].value_codec != ZPS_VALUES_RAW) reading->is_raw = false;
    if (views[v].nnz > 0) reading->codecs |= 1u << views[v].codec;
    if (views[v].codec >= ZPS_CODEC_COUNT || !values_suit(views[v].value_codec, dtype) ||
        views[v].nnz > zps_partition_size(&part, views[v].partition))
      return zps_fail(error, ZPS_ERR_INVALID, "view %u: %u rows as codecs %u and %u: its sizes were not checked", v,
                      views[v].nnz, views[v].codec, views[v].value_codec);
  }
  const u64 starts_len = n_views + 1ull, len_bytes = n_views * sizeof *views + KINDS * starts_len * sizeof(u64);
  const zps_err_t code = table_open(table, len_bytes, stream, error);
  if (code != ZPS_OK) return code;
  zps_device_view *const table_views = static_cast<zps_device_view *>(table->host);
  u64 *const starts = reinterpret_cast<u64 *>(table_views + n_views);
  u64 totals[KINDS] = {0};
  for (u32 v = 0; v <= n_views; v++) {
    for (u32 i = 0; i < KINDS; i++) starts[i * starts_len + v] = totals[i];
    if (v == n_views) break;
    const zps_device_view &view = views[v];
    const u32 m = zps_partition_size(&part, view.partition);
    const u64 n_holes = view.codec == ZPS_CODEC_HOLES ? m - view.nnz : 0;
    const u64 n_coded = view.codec == ZPS_CODEC_RICE ? view.nnz : n_holes;
    table_views[v] = view;
    totals[0] += view.nnz;
    totals[1] += view.codec == ZPS_CODEC_BITMAP ? m / 32 + (m % 32 != 0) : 0;
    totals[2] += (n_coded + ZPS_RICE_BLOCK - 1) / ZPS_RICE_BLOCK;
    totals[3] += n_holes;
    totals[4] += view.codec == ZPS_CODEC_BITMAP ? view.nnz : 0;
  }
  const zps_err_t sent = table_send(table, len_bytes, stream, error);
  if (sent != ZPS_OK) return sent;
  reading->views = static_cast<const zps_device_view *>(table->device.memory);
  const u64 *const at = reinterpret_cast<const u64 *>(reading->views + n_views);
  reading->starts = at;
  reading->word_starts = at + starts_len;
  reading->block_starts = at + 2 * starts_len;
  reading->hole_starts = at + 3 * starts_len;
  reading->bit_starts = at + 4 * starts_len;
  reading->n_rows = totals[0];
  reading->n_words = totals[1];
  reading->n_blocks = totals[2];
  reading->n_holes = totals[3];
  if (reading->n_rows > UINT32_MAX)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%llu rows at once: a GPU decodes up to 2^32 - 1", reading->n_rows);
  return ZPS_OK;
}

void reading_take(Reading *reading, ReadingStates *states, Pieces *zeroed, Pieces *pieces) {
  const u64 n_blocks = reading->n_blocks;
  states->tickets = zeroed->take<Tickets>(2);
  states->words = zeroed->take<u64>((reading->n_words + THREADS - 1) / THREADS);
  states->blocks = zeroed->take<u64>(scan_tiles(n_blocks));
  reading->bad = zeroed->take<u32>(1);
  reading->indices = pieces->take<u32>(reading->n_rows);
  reading->holes = pieces->take<u32>(reading->n_holes);
  reading->parameters = pieces->take<uint8_t>(n_blocks);
  reading->bits = pieces->take<u64>(n_blocks);
  reading->sums = pieces->take<u64>(n_blocks);
  reading->sum_starts = pieces->take<u64>(n_blocks + 1);
}

zps_err_t reading_fail(zps_error *error, const zps_device_view *views, u32 bad) {
  const zps_device_view &view = views[bad - 1];
  return zps_fail(error, ZPS_ERR_PROTOCOL,
                  "slice of partition %u: its %s index is no ascending set of %u indices, or its values are no list",
                  view.partition,
                  view.codec == ZPS_CODEC_COO      ? "coo"
                  : view.codec == ZPS_CODEC_BITMAP ? "bitmap"
                  : view.codec == ZPS_CODEC_RICE   ? "rice"
                                                   : "holes",
                  view.nnz);
}

zps_err_t decoder_create(zps_device *device, zps_device_decoder **decoder_p, zps_error *error) {
  zps_device_decoder *const made = new (std::nothrow) zps_device_decoder();
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a decoder");
  made->device = device_of(device);
  *decoder_p = made;
  return ZPS_OK;
}

void decoder_destroy(zps_device_decoder *decoder) {
  if (!decoder) return;
  const Current current(decoder->device);
  scratch_release(&decoder->scratch);
  table_release(&decoder->table);
  (void)cudaFreeHost(decoder->report);
  delete[] decoder->views;
  delete decoder;
}

namespace {

/* The views are kept for the error's text. */
zps_err_t keep_views(zps_device_decoder *decoder, const zps_device_view *views, u32 n_views, zps_error *error) {
  if (!decoder->report) {
    void *memory;
    const zps_err_t code = pinned_new(&memory, sizeof *decoder->report, error);
    if (code != ZPS_OK) return code;
    decoder->report = static_cast<zps_device_decoder::Report *>(memory);
  }
  if (n_views > decoder->views_max) {
    delete[] decoder->views;
    decoder->views_max = 0;
    decoder->views = new (std::nothrow) zps_device_view[n_views];
    if (!decoder->views) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u views", n_views);
    decoder->views_max = n_views;
  }
  for (u32 v = 0; v < n_views; v++) decoder->views[v] = views[v];
  return ZPS_OK;
}

/* The use of the rows once their indices are read. */
struct Wanted {
  void *dense;   /* NULL: rows and values are wanted */
  int64_t *rows; /* ascending */
  void *values;
};

struct Sorting {
  u64 *keys, *other_keys;
  u32 *places, *other_places;
  u64 *radix_space;
};

void sorting_take(Sorting *sorting, u64 n, Pieces *pieces) {
  sorting->keys = pieces->take<u64>(n);
  sorting->other_keys = pieces->take<u64>(n);
  sorting->places = pieces->take<u32>(n);
  sorting->other_places = pieces->take<u32>(n);
  sorting->radix_space = pieces->take<u64>(radix_space(n));
}

void sort_rows(const Device *device, cudaStream_t stream, const Reading &reading, const Sorting &sorting,
               const Wanted &wanted) {
  RadixDigits digits = {};
  add_digits(&digits, reading.part.rows - 1, 0);
  const Columns<u64> from = {sorting.keys, sorting.places, nullptr},
                     to = {sorting.other_keys, sorting.other_places, nullptr};
  list_keys(stream, device->grid, reading, sorting.keys, sorting.places);
  const bool moved = radix_sort(stream, device->grid, from, to, reading.starts + reading.n_views, reading.n_rows,
                                digits, sorting.radix_space);
  gather_rows(stream, device->grid, reading, moved ? to.keys : from.keys, moved ? to.a : from.a, wanted.rows,
              wanted.values);
}

zps_err_t decode(zps_device_decoder *decoder, const zps_partition *part, u32 width, enum zps_dtype dtype,
                 const zps_device_view *views, u32 n_views, const Wanted &wanted, cudaStream_t stream,
                 zps_error *error) {
  const Device *const device = decoder->device;
  const Current current(device);
  Reading reading;
  zps_err_t code = keep_views(decoder, views, n_views, error);
  if (code == ZPS_OK)
    code = reading_open(&reading, &decoder->table, *part, width, dtype, views, n_views, stream, error);
  if (code != ZPS_OK) return code;

  ReadingStates states;
  Sorting sorting = {};
  code = scratch_lay_out(&decoder->scratch, stream, error, [&](Pieces *zeroed, Pieces *pieces) {
    reading_take(&reading, &states, zeroed, pieces);
    if (wanted.rows) sorting_take(&sorting, reading.n_rows, pieces);
  });
  if (code != ZPS_OK) return code;
  read_indices(stream, device->grid, reading, states.tickets, states.words, states.blocks);
  check_values(stream, device->grid, reading);
  if (wanted.dense)
    scatter_rows(stream, device->grid, reading, wanted.dense);
  else if (reading.n_rows > 0)
    sort_rows(device, stream, reading, sorting, wanted);
  (void)cudaMemcpyAsync(&decoder->report->bad, reading.bad, sizeof(u32), cudaMemcpyDefault, stream);
  return check_launches(error, "decoding");
}

}  // namespace

zps_err_t decoder_dense(zps_device_decoder *decoder, const zps_partition *part, uint32_t width, enum zps_dtype dtype,
                        const zps_device_view *views, unsigned n_views, void *dense_on_device, zps_stream_t stream,
                        zps_error *error) {
  const Wanted wanted = {dense_on_device, nullptr, nullptr};
  return decode(decoder, part, width, dtype, views, n_views, wanted, static_cast<cudaStream_t>(stream), error);
}

zps_err_t decoder_rows(zps_device_decoder *decoder, const zps_partition *part, uint32_t width, enum zps_dtype dtype,
                       const zps_device_view *views, unsigned n_views, int64_t *rows_on_device, void *values_on_device,
                       zps_stream_t stream, zps_error *error) {
  const Wanted wanted = {nullptr, rows_on_device, values_on_device};
  return decode(decoder, part, width, dtype, views, n_views, wanted, static_cast<cudaStream_t>(stream), error);
}

zps_err_t decoder_finish(zps_device_decoder *decoder, zps_error *error) {
  const u32 bad = decoder->report ? decoder->report->bad : 0;
  return bad ? reading_fail(error, decoder->views, bad) : ZPS_OK;
}

}  // namespace zps
