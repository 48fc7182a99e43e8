#include "tests/gpu/bench/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

enum { CODECS = (1u << ZPS_CODEC_COUNT) - 1, N_RANKS = 3, TAG = ZPS_DEVICE_TAG_BYTES };
static const unsigned char key[ZPS_DEVICE_KEY_BYTES] = "any key, of which the last is \xff\xff";

/* One device, and the objects in its use. After an error everything else is skipped. */
struct side {
  struct zps_device *device;
  zps_stream_t stream;
  struct zps_event *event;
  struct zps_device_encoder *encoder;
  struct zps_device_decoder *decoder;
  struct zps_error error;
  zps_err_t code;
};

struct slices {
  uint32_t n_parts;
  struct zps_device_slice *table; /* host */
  char **bytes;                   /* host */
  void **on_device;
};

struct gradient {
  struct zps_encode_input input; /* host pointers */
  uint64_t n;                    /* rows or entries */
  void *values;
  int64_t *rows;
};

#define DO(side, call)                                                    \
  do {                                                                    \
    if ((side)->code == ZPS_OK) (side)->code = (side)->device->ops->call; \
  } while (0)

static void wait_for(struct side *side) {
  DO(side, event_record(side->device, side->event, side->stream, &side->error));
  DO(side, event_sync(side->device, side->event, &side->error));
}

static void open_side(struct side *side, struct zps_device *device) {
  *side = (struct side){.device = device};
  DO(side, stream_create(device, &side->stream, &side->error));
  DO(side, event_create(device, &side->event, &side->error));
  DO(side, encoder_create(device, &side->encoder, &side->error));
  DO(side, decoder_create(device, &side->decoder, &side->error));
}

static void close_side(struct side *side) {
  const struct zps_device_ops *const ops = side->device->ops;
  ops->encoder_destroy(side->encoder);
  ops->decoder_destroy(side->decoder);
  ops->event_destroy(side->device, side->event);
  ops->stream_destroy(side->device, side->stream);
}

static void *new_on(struct side *side, size_t len_bytes) {
  void *at = NULL;
  DO(side, allocate(side->device, ZPS_MEMORY_DEVICE, len_bytes + 8, &at, &side->error));
  return at;
}

static void free_on(struct side *side, void *at) {
  side->device->ops->release(side->device, ZPS_MEMORY_DEVICE, at);
}

static void *upload(struct side *side, const void *from, size_t len_bytes) {
  void *const at = new_on(side, len_bytes);
  DO(side, copy(side->device, at, from, len_bytes, side->stream, &side->error));
  wait_for(side);
  return at;
}

static void *download(struct side *side, const void *from, size_t len_bytes) {
  void *const to = calloc(1, len_bytes + 8);
  if (!to) abort();
  DO(side, copy(side->device, to, from, len_bytes, side->stream, &side->error));
  wait_for(side);
  return to;
}

/* ------------------------------------------------------------ gradients */

static double draw(struct zps_rng *rng) {
  return (zps_rng_unit(rng) - 0.5) * (zps_rng_below(rng, 3) ? 1 : 1e-6);
}

static void set_value(enum zps_dtype dtype, void *values, uint64_t i, double value) {
  const float near = (float)value;
  if (dtype == ZPS_DTYPE_F32)
    ((float *)values)[i] = near;
  else if (dtype == ZPS_DTYPE_F64)
    ((double *)values)[i] = value;
  else if (dtype == ZPS_DTYPE_U8)
    ((uint8_t *)values)[i] = (uint8_t)(value * 1000);
  else
    zps_values_narrow(dtype, &near, 1, (uint16_t *)values + i);
}

/* Dense, or in entries whose rows repeat. */
static struct gradient new_gradient(struct zps_rng *rng, const struct zps_partition *part, uint32_t width,
                                    enum zps_dtype dtype, double density, bool is_coo) {
  struct gradient gradient = {.n = is_coo ? (uint64_t)((double)part->rows * density) : part->rows};
  gradient.values = calloc(gradient.n * width + 1, zps_dtype_size(dtype));
  gradient.rows = is_coo ? calloc(gradient.n + 1, sizeof *gradient.rows) : NULL;
  if (!gradient.values || (is_coo && !gradient.rows)) abort();
  for (uint64_t i = 0; i < gradient.n; i++) {
    if (is_coo)
      gradient.rows[i] =
          (int64_t)zps_rng_below(rng, part->rows / (zps_rng_below(rng, 2) ? 1 : 20) + 1) % (int64_t)part->rows;
    if (!is_coo && zps_rng_unit(rng) >= density) continue;
    for (uint32_t c = 0; c < width; c++) set_value(dtype, gradient.values, i * width + c, draw(rng));
  }
  gradient.input = (struct zps_encode_input){.part = part,
                                             .width = width,
                                             .dtype = dtype,
                                             .value_codec = zps_values_own(dtype),
                                             .origin = {.seed = 1, .step = 2, .tensor = 3, .rank = 4},
                                             .values = gradient.values,
                                             .rows = gradient.rows,
                                             .n_entries = is_coo ? gradient.n : 0};
  return gradient;
}

static void free_gradient(struct gradient *gradient) {
  free(gradient->values);
  free(gradient->rows);
}

/* ------------------------------------------------------------ slices */

static struct slices take_slices(struct side *side, const struct zps_device_slice *table, uint32_t n_parts) {
  struct slices slices = {.n_parts = n_parts,
                          .table = calloc(n_parts, sizeof *table),
                          .bytes = calloc(n_parts, sizeof(char *)),
                          .on_device = calloc(n_parts, sizeof(void *))};
  if (!slices.table || !slices.bytes || !slices.on_device) abort();
  if (side->code != ZPS_OK) return slices;
  memcpy(slices.table, table, n_parts * sizeof *table);
  for (uint32_t p = 0; p < n_parts; p++) slices.on_device[p] = new_on(side, table[p].len_bytes);
  DO(side, encoder_write(side->encoder, slices.on_device, side->stream, &side->error));
  wait_for(side);
  for (uint32_t p = 0; p < n_parts && side->code == ZPS_OK; p++)
    slices.bytes[p] = download(side, slices.on_device[p], slices.table[p].len_bytes);
  return slices;
}

static void free_slices(struct side *side, struct slices *slices) {
  for (uint32_t p = 0; p < slices->n_parts; p++) {
    free(slices->bytes[p]);
    free_on(side, slices->on_device[p]);
  }
  free(slices->table);
  free(slices->bytes);
  free(slices->on_device);
}

static struct slices encode(struct side *side, const struct gradient *gradient, enum zps_value_codec value_codec) {
  struct zps_encode_input there = gradient->input;
  void *const values = upload(side, gradient->values, gradient->n * there.width * zps_dtype_size(there.dtype));
  void *const rows = gradient->rows ? upload(side, gradient->rows, gradient->n * sizeof *gradient->rows) : NULL;
  const struct zps_device_slice *table = NULL;
  there.values = values;
  there.rows = rows;
  there.value_codec = value_codec;
  for (unsigned i = 0; i < 2; i++) { /* memory that is too small grows once */
    if (side->code == ZPS_ERR_AGAIN) side->code = ZPS_OK;
    DO(side, encoder_scan(side->encoder, &there, CODECS, side->stream, &side->error));
    wait_for(side);
    DO(side, encoder_finish(side->encoder, &table, &side->error));
    if (side->code != ZPS_ERR_AGAIN) break;
  }
  const struct slices slices = take_slices(side, table, there.part->n_parts);
  free_on(side, values);
  free_on(side, rows);
  return slices;
}

static void fill_views(const struct slices *slices, struct zps_device_view *views) {
  for (uint32_t p = 0; p < slices->n_parts; p++)
    views[p] = (struct zps_device_view){.codec = slices->table[p].codec,
                                        .value_codec = slices->table[p].value_codec,
                                        .partition = p,
                                        .nnz = slices->table[p].nnz,
                                        .len_bytes = slices->table[p].len_bytes,
                                        .payload_on_device = slices->on_device[p]};
}

/* Slices of lists of halves may be wide: they go to servers, which answer with halves. */
static bool is_decoded(const struct slices *slices, const struct zps_encode_input *input) {
  for (uint32_t p = 0; p < slices->n_parts; p++)
    if (zps_dtype_is_half(input->dtype) && slices->table[p].value_codec == ZPS_VALUES_RAW) return false;
  return true;
}

static void *decode(struct side *side, const struct zps_encode_input *input, const struct slices *slices) {
  const size_t len_bytes = input->part->rows * input->width * zps_dtype_size(input->dtype);
  struct zps_device_view *const views = calloc(slices->n_parts, sizeof *views);
  if (!views) abort();
  fill_views(slices, views);
  void *const dense = new_on(side, len_bytes);
  DO(side, clear(side->device, dense, len_bytes, side->stream, &side->error));
  DO(side, decoder_dense(side->decoder, input->part, input->width, input->dtype, views, slices->n_parts, dense,
                         side->stream, &side->error));
  wait_for(side);
  DO(side, decoder_finish(side->decoder, &side->error));
  void *const result = download(side, dense, len_bytes);
  free_on(side, dense);
  free(views);
  return result;
}

static struct slices merge(struct side *side, const struct zps_encode_input *input, const struct slices *of_ranks) {
  const uint32_t n_parts = input->part->n_parts;
  struct zps_device_view *const views = calloc((size_t)N_RANKS * n_parts, sizeof *views);
  const struct zps_device_slice *table = NULL;
  if (!views) abort();
  for (unsigned rank = 0; rank < N_RANKS; rank++) fill_views(&of_ranks[rank], views + rank * n_parts);
  DO(side, encoder_merge(side->encoder, input, views, N_RANKS, CODECS, side->stream, &side->error));
  wait_for(side);
  DO(side, encoder_finish(side->encoder, &table, &side->error));
  free(views);
  return take_slices(side, table, n_parts);
}

static bool same_slices(const struct slices *a, const struct slices *b) {
  for (uint32_t p = 0; p < a->n_parts; p++) {
    if (memcmp(&a->table[p], &b->table[p], sizeof a->table[p]) != 0) return false;
    if (memcmp(a->bytes[p], b->bytes[p], a->table[p].len_bytes) != 0) return false;
  }
  return true;
}

/* ------------------------------------------------------------ comparisons */

struct comparison {
  struct side cpu, device;
  struct zps_rng rng;
  unsigned n_checks;
  const char *what;
  const struct zps_encode_input *input;
};

/* Prints the operation and its error. */
static bool verdict(struct comparison *comparison, bool is_same) {
  comparison->n_checks++;
  struct side *const sides[] = {&comparison->cpu, &comparison->device};
  const struct zps_encode_input *const input = comparison->input;
  bool is_good = is_same;
  for (unsigned i = 0; i < 2; i++) {
    if (sides[i]->code == ZPS_OK) continue;
    fprintf(stderr, "%s: %s: %s\n", sides[i]->device->ops->kind, comparison->what, sides[i]->error.text);
    is_good = false;
  }
  if (!is_good)
    fprintf(stderr, "%s differs: %llu rows of %u x dtype %d, %u partitions of blocks of 2^%u, %s\n", comparison->what,
            (unsigned long long)input->part->rows, input->width, (int)input->dtype, input->part->n_parts,
            input->part->block_bits, input->rows ? "coo" : "dense");
  return is_good;
}

static bool check_tags(struct comparison *comparison, const struct slices *const of[2]) {
  struct side *const sides[] = {&comparison->cpu, &comparison->device};
  struct zps_device_tag *made[2] = {NULL, NULL};
  const uint32_t n = of[0]->n_parts;
  comparison->what = "the checksum";
  for (unsigned i = 0; i < 2; i++) {
    void *pinned = NULL;
    DO(sides[i], allocate(sides[i]->device, ZPS_MEMORY_PINNED, n * sizeof *made[i], &pinned, &sides[i]->error));
    made[i] = pinned;
    for (uint32_t p = 0; made[i] && p < n; p++)
      made[i][p] = (struct zps_device_tag){.at_on_device = of[i]->on_device[p], .len_bytes = of[i]->table[p].len_bytes};
    DO(sides[i], poly1305(sides[i]->device, key, made[i], n, sides[i]->stream, &sides[i]->error));
    wait_for(sides[i]);
  }
  bool is_same = made[0] && made[1];
  for (uint32_t p = 0; is_same && p < n; p++) is_same = memcmp(made[0][p].tag, made[1][p].tag, TAG) == 0;
  for (unsigned i = 0; i < 2; i++) sides[i]->device->ops->release(sides[i]->device, ZPS_MEMORY_PINNED, made[i]);
  return verdict(comparison, is_same);
}

static bool check_coding(struct comparison *comparison, const struct gradient *gradient,
                         enum zps_value_codec value_codec) {
  struct side *const cpu = &comparison->cpu, *const device = &comparison->device;
  comparison->input = &gradient->input;
  comparison->what = "encoding";
  struct slices want = encode(cpu, gradient, value_codec), got = encode(device, gradient, value_codec);
  bool is_good = verdict(comparison, cpu->code == ZPS_OK && device->code == ZPS_OK && same_slices(&got, &want)) &&
                 check_tags(comparison, (const struct slices *[]){&want, &got});
  if (is_good && is_decoded(&want, &gradient->input)) {
    comparison->what = "decoding";
    void *const dense_want = decode(cpu, &gradient->input, &want);
    void *const dense_got = decode(device, &gradient->input, &got);
    const size_t len_bytes = gradient->input.part->rows * gradient->input.width * zps_dtype_size(gradient->input.dtype);
    is_good = verdict(comparison, memcmp(dense_got, dense_want, len_bytes) == 0);
    free(dense_want);
    free(dense_got);
  }
  free_slices(cpu, &want);
  free_slices(device, &got);
  return is_good;
}

static bool check_merging(struct comparison *comparison, const struct zps_partition *part, uint32_t width,
                          enum zps_dtype dtype, double density) {
  struct side *const cpu = &comparison->cpu, *const device = &comparison->device;
  struct slices of_cpu[N_RANKS], of_device[N_RANKS];
  struct zps_encode_input input = {0};
  for (unsigned rank = 0; rank < N_RANKS; rank++) {
    struct gradient gradient = new_gradient(&comparison->rng, part, width, dtype, density, false);
    of_cpu[rank] = encode(cpu, &gradient, ZPS_VALUES_RAW);
    of_device[rank] = encode(device, &gradient, ZPS_VALUES_RAW);
    input = gradient.input;
    input.values = NULL;
    free_gradient(&gradient);
  }
  comparison->input = &input;
  comparison->what = "merging";
  struct slices want = merge(cpu, &input, of_cpu), got = merge(device, &input, of_device);
  const bool is_good = verdict(comparison, cpu->code == ZPS_OK && device->code == ZPS_OK && same_slices(&got, &want));
  free_slices(cpu, &want);
  free_slices(device, &got);
  for (unsigned rank = 0; rank < N_RANKS; rank++) {
    free_slices(cpu, &of_cpu[rank]);
    free_slices(device, &of_device[rank]);
  }
  return is_good;
}

static int compare_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Algorithm 1: every row once, in its partition. */
static bool check_hashing(struct comparison *comparison, const struct zps_partition *part) {
  struct side *const device = &comparison->device;
  const uint64_t n = part->rows / 10 + 1, stride = part->rows / n;
  const struct zps_encode_input input = {.part = part, .width = 1, .dtype = ZPS_DTYPE_F32};
  const struct zps_device_hashing hashing = {.seed = zps_rng_u64(&comparison->rng)};
  uint64_t *const rows = calloc(n, sizeof *rows);
  if (!rows) abort();
  for (uint64_t i = 0; i < n; i++) rows[i] = i * stride + zps_rng_below(&comparison->rng, stride);
  void *const there = upload(device, rows, n * sizeof *rows), *const out = new_on(device, n * sizeof *rows);
  void *const starts_there = new_on(device, (part->n_parts + 1) * sizeof *rows);
  comparison->input = &input;
  comparison->what = "hashing";
  DO(device, hash(device->device, &hashing, part, there, n, out, starts_there, device->stream, NULL, &device->error));
  uint64_t *const got = download(device, out, n * sizeof *rows);
  uint64_t *const starts = download(device, starts_there, (part->n_parts + 1) * sizeof *rows);
  bool is_good = device->code == ZPS_OK && starts[0] == 0 && starts[part->n_parts] == n;
  for (uint32_t p = 0; is_good && p < part->n_parts; p++) {
    uint32_t index;
    for (uint64_t i = starts[p]; is_good && i < starts[p + 1]; i++)
      is_good = zps_partition_of(part, got[i], &index) == p;
  }
  qsort(got, n, sizeof *got, compare_u64);
  is_good = verdict(comparison, is_good && memcmp(got, rows, n * sizeof *rows) == 0);
  free(rows);
  free(got);
  free(starts);
  free_on(device, there);
  free_on(device, out);
  free_on(device, starts_there);
  return is_good;
}

static bool check_shape(struct comparison *comparison, uint64_t rows, unsigned i) {
  static const struct {
    uint32_t width, n_parts, block_bits;
    enum zps_dtype dtype;
  } shapes[] = {{1, 64, 0, ZPS_DTYPE_F32}, {1, 1, 0, ZPS_DTYPE_F32},   {1, 1000, 0, ZPS_DTYPE_F32},
                {1, 7, 4, ZPS_DTYPE_F32},  {16, 16, 0, ZPS_DTYPE_F32}, {33, 5, 0, ZPS_DTYPE_F64},
                {1, 12, 0, ZPS_DTYPE_F64}, {3, 4, 0, ZPS_DTYPE_U8},    {1, 64, 0, ZPS_DTYPE_BF16},
                {5, 16, 0, ZPS_DTYPE_F16}};
  static const double densities[] = {0.001, 0.03, 0.5, 0.98};
  enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_DENSITIES = sizeof densities / sizeof densities[0] };
  const unsigned s = i % N_SHAPES;
  const double density = densities[i / N_SHAPES % N_DENSITIES];
  struct zps_partition part;
  if (zps_partition_init(&part, rows / shapes[s].width + 1, shapes[s].n_parts, shapes[s].block_bits, i, NULL) != ZPS_OK)
    return false;
  struct gradient gradient =
      new_gradient(&comparison->rng, &part, shapes[s].width, shapes[s].dtype, density, i / N_SHAPES % 2);
  enum zps_value_codec narrow = (enum zps_value_codec)(ZPS_VALUES_BF16 + i % 5);
  if (!zps_values_suit(narrow, shapes[s].dtype)) narrow = gradient.input.value_codec;
  bool is_good =
      check_coding(comparison, &gradient, gradient.input.value_codec) && check_coding(comparison, &gradient, narrow);
  free_gradient(&gradient);
  if (!zps_dtype_is_half(shapes[s].dtype))
    is_good = is_good && check_merging(comparison, &part, shapes[s].width, shapes[s].dtype, density);
  return is_good && check_hashing(comparison, &part);
}

bool zps_bench_check(struct zps_device *cpu, struct zps_device *device, uint64_t rows_max, unsigned n_shapes,
                     unsigned *n_checks_p) {
  struct comparison comparison = {.rng = {.state = 1}};
  open_side(&comparison.cpu, cpu);
  open_side(&comparison.device, device);
  bool is_good = true;
  for (unsigned i = 0; i < n_shapes && is_good; i++)
    is_good = check_shape(&comparison, rows_max >> i % 4, i) &&
              zps_bench_check_selection(device, i % 2 ? ZPS_DTYPE_F64 : ZPS_DTYPE_F32, rows_max >> i % 4, i,
                                        &comparison.n_checks);
  close_side(&comparison.cpu);
  close_side(&comparison.device);
  *n_checks_p = comparison.n_checks;
  return is_good;
}
