/* Selection on a device against worker/select: the k greatest, all from a magnitude on, and those of a sample. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/gpu/bench/check.h"
#include "worker/select/estimate.h"
#include "worker/select/magnitude.h"
#include "worker/select/order.h"
#include "worker/select/scan.h"

/* One array, on both sides. After an error everything else is skipped. */
struct selection {
  struct zps_device *device;
  struct zps_device_selector *selector;
  struct zps_device_feedback there;
  struct zps_feedback here;
  zps_stream_t stream;
  struct zps_event *event;
  struct zps_error error;
  zps_err_t code;
};

#define DO(selection, call)                                                              \
  do {                                                                                   \
    if ((selection)->code == ZPS_OK) (selection)->code = (selection)->device->ops->call; \
  } while (0)

static void wait_for(struct selection *s) {
  DO(s, event_record(s->device, s->event, s->stream, &s->error));
  DO(s, event_sync(s->device, s->event, &s->error));
}

static void *new_on(struct selection *s, size_t len_bytes) {
  void *at = NULL;
  DO(s, allocate(s->device, ZPS_MEMORY_DEVICE, len_bytes + 8, &at, &s->error));
  return at;
}

static void copy(struct selection *s, void *to, const void *from, size_t len_bytes) {
  DO(s, copy(s->device, to, from, len_bytes, s->stream, &s->error));
  wait_for(s);
}

static struct zps_picks new_picks(uint64_t n, size_t size) {
  const struct zps_picks picks = {.ids = calloc(n, sizeof *picks.ids), .values = calloc(n, size), .capacity = n};
  if (!picks.ids || !picks.values) abort();
  return picks;
}

static void free_picks(struct zps_picks *picks) {
  free(picks->ids);
  free(picks->values);
}

/* The magnitude of the sample that the device draws of an array that has been added to. */
static uint64_t sampled_magnitude(const struct selection *s, const struct zps_device_cut *cut) {
  const size_t size = zps_dtype_size(s->here.dtype);
  void *const zeros = calloc(s->here.n, size), *const sample = calloc(cut->n_sample, size);
  if (!zeros || !sample) abort();
  zps_estimate_sample(&s->here, zeros, 1, cut->seed, cut->step, sample, cut->n_sample);
  const uint64_t magnitude = zps_order_select(s->here.dtype, sample, cut->n_sample, cut->k).magnitude;
  free(zeros);
  free(sample);
  return magnitude;
}

/* The entries that the host picks. Returns the least magnitude. */
static uint64_t pick_here(const struct selection *s, const struct zps_device_cut *cut, struct zps_picks *picks) {
  uint64_t magnitude = cut->magnitude, ties = UINT64_MAX;
  if (cut->kind == ZPS_CUT_SAMPLED) magnitude = sampled_magnitude(s, cut);
  if (cut->kind == ZPS_CUT_TOPK) {
    const struct zps_order order = zps_order_select(s->here.dtype, s->here.residual, s->here.n, cut->k);
    magnitude = order.magnitude;
    if (magnitude > 0) ties = cut->k - order.n_above;
  }
  if (magnitude == 0) magnitude = 1; /* no zeros */
  if (!zps_scan_pick(s->here.dtype, s->here.residual, 0, s->here.n, magnitude, &ties, picks)) abort();
  return magnitude;
}

static bool check_cut(struct selection *s, const struct zps_device_cut *cut) {
  const size_t size = zps_dtype_size(s->here.dtype);
  struct zps_picks wanted = new_picks(s->here.n, size), got = new_picks(s->here.n, size);
  struct zps_device_selected selected = {.n = 0};
  const uint64_t magnitude = pick_here(s, cut, &wanted);
  void *const ids = new_on(s, s->here.n * sizeof *got.ids), *const values = new_on(s, s->here.n * size);
  DO(s, selector_pick(s->selector, &s->there, cut, ids, values, s->here.n, s->stream, &s->error));
  wait_for(s);
  DO(s, selector_finish(s->selector, &selected, &s->error));
  copy(s, got.ids, ids, selected.n * sizeof *got.ids);
  copy(s, got.values, values, selected.n * size);
  const bool is_good = s->code == ZPS_OK && selected.n == wanted.n && selected.magnitude == magnitude &&
                       memcmp(got.ids, wanted.ids, wanted.n * sizeof *got.ids) == 0 &&
                       memcmp(got.values, wanted.values, wanted.n * size) == 0;
  if (!is_good)
    fprintf(stderr, "DIFFERENT: selection of kind %d, k %llu, of %llu values of dtype %d: %s\n", (int)cut->kind,
            (unsigned long long)cut->k, (unsigned long long)s->here.n, (int)s->here.dtype,
            s->code == ZPS_OK ? "other entries than the cpu's" : s->error.text);
  s->device->ops->release(s->device, ZPS_MEMORY_DEVICE, ids);
  s->device->ops->release(s->device, ZPS_MEMORY_DEVICE, values);
  free_picks(&wanted);
  free_picks(&got);
  return is_good;
}

/* Many values are equal, and some are zero. */
static void draw_values(struct zps_rng *rng, const struct zps_feedback *feedback) {
  for (uint64_t i = 0; i < feedback->n; i++) {
    const bool is_coarse = zps_rng_below(rng, 2) != 0;
    const double value = is_coarse ? (double)zps_rng_below(rng, 9) - 4 : (zps_rng_unit(rng) - 0.5) * 8;
    if (feedback->dtype == ZPS_DTYPE_F32)
      ((float *)feedback->residual)[i] = (float)value;
    else
      ((double *)feedback->residual)[i] = value;
  }
}

bool zps_bench_check_selection(struct zps_device *device, enum zps_dtype dtype, uint64_t n, uint64_t seed,
                               unsigned *n_checks_p) {
  struct zps_rng rng = {.state = seed};
  struct selection s = {.device = device, .there = {.dtype = dtype, .n = n, .decay = 1}};
  if (zps_feedback_init(&s.here, dtype, n, 0, 0, 1) != ZPS_OK) abort();
  draw_values(&rng, &s.here);
  DO(&s, stream_create(device, &s.stream, &s.error));
  DO(&s, event_create(device, &s.event, &s.error));
  DO(&s, selector_create(device, &s.selector, &s.error));
  s.there.residual_on_device = new_on(&s, n * zps_dtype_size(dtype));
  copy(&s, s.there.residual_on_device, s.here.residual, n * zps_dtype_size(dtype));
  const struct zps_device_cut cuts[] = {
      {.kind = ZPS_CUT_TOPK, .k = 1 + n / 100},
      {.kind = ZPS_CUT_TOPK, .k = n},
      {.kind = ZPS_CUT_THRESHOLD, .magnitude = zps_magnitude_from(dtype, 3)},
      {.kind = ZPS_CUT_SAMPLED, .k = 1 + n / 500, .n_sample = 1 + n / 10, .seed = seed, .step = 2},
  };
  bool is_good = true;
  for (unsigned i = 0; i < sizeof cuts / sizeof cuts[0] && is_good; i++, (*n_checks_p)++)
    is_good = check_cut(&s, &cuts[i]);
  device->ops->selector_destroy(s.selector);
  device->ops->release(device, ZPS_MEMORY_DEVICE, s.there.residual_on_device);
  device->ops->event_destroy(device, s.event);
  device->ops->stream_destroy(device, s.stream);
  zps_feedback_fini(&s.here);
  return is_good;
}
