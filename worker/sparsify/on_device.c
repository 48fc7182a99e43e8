#include "worker/sparsify/on_device.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "gpu/device.h"
#include "worker/select/estimate.h"
#include "worker/select/magnitude.h"
#include "worker/sparsify/bounds.h"

/* A list of row numbers on its way to the device or from there. */
struct ids {
  int64_t *here, *there;
  uint64_t n, capacity_here, capacity_there;
};

struct zps_sparsifier_there {
  struct zps_device *device;
  struct zps_device_selector *selector;
  struct zps_event *event;
  struct zps_device_feedback feedback;
  zps_stream_t stream; /* of the last selection */
  bool is_clearing;    /* `event` is behind work that takes entries out */
  void *sample;
  struct ids listed, fetched[2]; /* by enum zps_on_device_ids */
};

static const struct zps_device_ops *ops_of(const struct zps_sparsifier_there *there) {
  return there->device->ops;
}

/* ------------------------------------------------------------ life */

static zps_err_t new_zeros(struct zps_sparsifier_there *there, size_t len_bytes, void **at_p, struct zps_error *error) {
  const zps_err_t code = ops_of(there)->allocate(there->device, ZPS_MEMORY_DEVICE, len_bytes, at_p, error);
  return code == ZPS_OK ? ops_of(there)->clear(there->device, *at_p, len_bytes, NULL, error) : code;
}

static zps_err_t wait(struct zps_sparsifier_there *there, zps_stream_t stream, struct zps_error *error) {
  const zps_err_t code = ops_of(there)->event_record(there->device, there->event, stream, error);
  return code == ZPS_OK ? ops_of(there)->event_sync(there->device, there->event, error) : code;
}

/* Before arrays are released, or read, that the last commit may still use. */
static void settle(struct zps_sparsifier_there *there) {
  struct zps_error ignored;
  if (there->is_clearing) (void)ops_of(there)->event_sync(there->device, there->event, &ignored);
  there->is_clearing = false;
}

static zps_err_t allocate(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  const size_t size = zps_dtype_size(sparsifier->dtype), len_bytes = sparsifier->n * size;
  there->feedback = (struct zps_device_feedback){
      .dtype = sparsifier->dtype, .n = sparsifier->n, .momentum = options->momentum, .decay = options->decay};
  zps_err_t code = new_zeros(there, len_bytes, &there->feedback.residual_on_device, error);
  if (code == ZPS_OK && options->momentum > 0)
    code = new_zeros(there, len_bytes, &there->feedback.velocity_on_device, error);
  if (code == ZPS_OK && options->kind == ZENPS_SPARSIFY_THRESHOLD)
    code = new_zeros(there, options->sample * size, &there->sample, error);
  if (code == ZPS_OK) code = wait(there, NULL, error); /* other streams do not wait for the default one's clearing */
  sparsifier->feedback = (struct zps_feedback){.dtype = sparsifier->dtype,
                                               .n = sparsifier->n,
                                               .momentum = options->momentum,
                                               .residual = there->feedback.residual_on_device,
                                               .velocity = there->feedback.velocity_on_device};
  return code;
}

zps_err_t zps_on_device_create(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  struct zps_sparsifier_there *const there = calloc(1, sizeof *there);
  if (!there) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a sparsifier");
  sparsifier->there = there;
  zps_err_t code =
      zps_device_load(getenv("ZENPS_DEVICE_LIBRARY"), (unsigned)sparsifier->options.device, &there->device, error);
  if (code != ZPS_OK) return code;
  if (!ops_of(there)->selector_create)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "sparsifier: device %s does not select; use ZENPS_HOST",
                    ops_of(there)->kind);
  code = ops_of(there)->event_create(there->device, &there->event, error);
  if (code == ZPS_OK) code = ops_of(there)->selector_create(there->device, &there->selector, error);
  return code == ZPS_OK ? allocate(sparsifier, error) : code;
}

static void ids_free(struct zps_sparsifier_there *there, struct ids *ids) {
  free(ids->here);
  ops_of(there)->release(there->device, ZPS_MEMORY_DEVICE, ids->there);
}

void zps_on_device_destroy(struct zenps_sparsifier *sparsifier) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  if (!there) return;
  if (there->device) {
    const struct zps_device_ops *const ops = ops_of(there);
    settle(there);
    void *const arrays[] = {there->feedback.residual_on_device, there->feedback.velocity_on_device, there->sample,
                            sparsifier->picks.ids, sparsifier->picks.values};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
      ops->release(there->device, ZPS_MEMORY_DEVICE, arrays[i]);
    ids_free(there, &there->listed);
    for (int i = 0; i < 2; i++) ids_free(there, &there->fetched[i]);
    if (there->selector) ops->selector_destroy(there->selector);
    if (there->event) ops->event_destroy(there->device, there->event);
    zps_device_close(there->device);
  }
  free(there);
  sparsifier->feedback = (struct zps_feedback){.n = 0};
  sparsifier->picks = (struct zps_picks){.n = 0};
  sparsifier->there = NULL;
}

zps_err_t zps_on_device_reserve(struct zenps_sparsifier *sparsifier, uint64_t capacity, struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  const struct zps_device_ops *const ops = ops_of(there);
  struct zps_picks *const picks = &sparsifier->picks;
  void *ids, *values;
  zps_err_t code = ops->allocate(there->device, ZPS_MEMORY_DEVICE, capacity * sizeof *picks->ids, &ids, error);
  if (code != ZPS_OK) return code;
  code = ops->allocate(there->device, ZPS_MEMORY_DEVICE, capacity * zps_dtype_size(sparsifier->dtype), &values, error);
  if (code != ZPS_OK) {
    ops->release(there->device, ZPS_MEMORY_DEVICE, ids);
    return code;
  }
  settle(there);
  ops->release(there->device, ZPS_MEMORY_DEVICE, picks->ids);
  ops->release(there->device, ZPS_MEMORY_DEVICE, picks->values);
  *picks = (struct zps_picks){.ids = ids, .values = values, .capacity = capacity};
  return ZPS_OK;
}

zps_err_t zps_on_device_copy(struct zenps_sparsifier *sparsifier, void *to, const void *from, size_t len_bytes,
                             struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  settle(there);
  const zps_err_t code = ops_of(there)->copy(there->device, to, from, len_bytes, NULL, error);
  return code == ZPS_OK ? wait(there, NULL, error) : code;
}

/* ------------------------------------------------------------ selecting */

static zps_err_t check_gradient(const struct zenps_sparsifier *sparsifier, const void *gradient,
                                struct zps_error *error) {
  const struct zps_sparsifier_there *const there = sparsifier->there;
  return ops_of(there)->check(there->device, gradient, sparsifier->n * zps_dtype_size(sparsifier->dtype), error);
}

zps_err_t zps_on_device_sample(struct zenps_sparsifier *sparsifier, const void *gradient, void *stream,
                               struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  const struct zps_device_ops *const ops = ops_of(there);
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  const struct zps_device_cut cut = {
      .kind = ZPS_CUT_SAMPLED, .n_sample = options->sample, .seed = options->seed, .step = sparsifier->steps};
  zps_err_t code = check_gradient(sparsifier, gradient, error);
  if (code == ZPS_OK)
    code = ops->selector_sample(there->selector, &there->feedback, &cut, gradient, 1, there->sample, stream, error);
  if (code == ZPS_OK)
    code = ops->copy(there->device, sparsifier->sample, there->sample,
                     options->sample * zps_dtype_size(sparsifier->dtype), stream, error);
  if (code == ZPS_OK) code = wait(there, stream, error);
  return code;
}

/* Picks, and waits until they are there. *fits_p: there was room for all; picks.n says how many there are. */
static zps_err_t pick(struct zenps_sparsifier *sparsifier, const struct zps_device_cut *cut, bool *fits_p,
                      struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  const struct zps_device_ops *const ops = ops_of(there);
  struct zps_picks *const picks = &sparsifier->picks;
  struct zps_device_selected selected;
  zps_err_t code = ops->selector_pick(there->selector, &there->feedback, cut, picks->ids, picks->values,
                                      picks->capacity, there->stream, error);
  if (code == ZPS_OK) code = wait(there, there->stream, error);
  if (code != ZPS_OK) return code;
  code = ops->selector_finish(there->selector, &selected, error);
  *fits_p = code == ZPS_OK;
  picks->n = selected.n;
  sparsifier->threshold = selected.magnitude;
  return code == ZPS_ERR_TRUNCATED ? ZPS_OK : code;
}

/* The k greatest, of each bucket with ZPS_CUT_BUCKETS: always fits. */
static zps_err_t pick_greatest(struct zenps_sparsifier *sparsifier, enum zps_cut_kind kind, struct zps_error *error) {
  const struct zps_device_cut cut = {.kind = kind, .k = sparsifier->options.k, .bucket = sparsifier->options.bucket};
  bool fits;
  return pick(sparsifier, &cut, &fits, error);
}

/* Picks from a threshold on, and the k greatest where that is not between `least` and `most` of k. */
static zps_err_t pick_within(struct zenps_sparsifier *sparsifier, const struct zps_device_cut *cut, double least,
                             double most, bool *accepted_p, struct zps_error *error) {
  bool fits;
  const zps_err_t code = pick(sparsifier, cut, &fits, error);
  if (code != ZPS_OK) return code;
  *accepted_p = zps_bounds_hold(&sparsifier->options, sparsifier->picks.n, fits, sparsifier->threshold, least, most);
  if (*accepted_p) return ZPS_OK;
  sparsifier->refined++;
  return pick_greatest(sparsifier, ZPS_CUT_TOPK, error);
}

static zps_err_t run_sampled(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  const struct zps_device_cut cut = {.kind = ZPS_CUT_SAMPLED,
                                     .k = zps_estimate_rank(options->sample, sparsifier->n, options->k, 0),
                                     .n_sample = options->sample,
                                     .seed = options->seed,
                                     .step = sparsifier->steps};
  bool accepted;
  return pick_within(sparsifier, &cut, ZPS_SAMPLED_LEAST, ZPS_SAMPLED_MOST, &accepted, error);
}

static zps_err_t run_reused(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  zps_err_t code;
  if (sparsifier->age == 0) {
    code = pick_greatest(sparsifier, ZPS_CUT_TOPK, error);
    sparsifier->reused = sparsifier->threshold;
  } else {
    const struct zps_device_cut cut = {.kind = ZPS_CUT_THRESHOLD, .magnitude = sparsifier->reused};
    bool accepted = false;
    code = pick_within(sparsifier, &cut, ZPS_REUSED_LEAST, ZPS_MOST, &accepted, error);
    if (!accepted) sparsifier->age = 0;
    sparsifier->reused =
        accepted && !sparsifier->options.unrefined ? zps_sparsifier_steered(sparsifier) : sparsifier->threshold;
  }
  sparsifier->age = (sparsifier->age + 1) % sparsifier->options.period;
  return code;
}

static zps_err_t run_threshold(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  const uint64_t given = zps_magnitude_from(sparsifier->dtype, sparsifier->options.threshold);
  const struct zps_device_cut cut = {.kind = ZPS_CUT_THRESHOLD, .magnitude = given ? given : 1};
  bool fits;
  const zps_err_t code = pick(sparsifier, &cut, &fits, error);
  if (code != ZPS_OK || (fits && sparsifier->picks.n <= sparsifier->options.k)) return code;
  sparsifier->refined++;
  return pick_greatest(sparsifier, ZPS_CUT_TOPK, error);
}

zps_err_t zps_on_device_run(struct zenps_sparsifier *sparsifier, const void *gradient, void *stream,
                            struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  zps_err_t code = check_gradient(sparsifier, gradient, error);
  if (code != ZPS_OK) return code;
  there->stream = stream;
  sparsifier->picks.n = 0;
  code = ops_of(there)->selector_add(there->selector, &there->feedback, gradient, 1, stream, error);
  if (code != ZPS_OK) return code;
  switch (sparsifier->options.kind) {
    case ZENPS_SPARSIFY_TOPK:
      code = pick_greatest(sparsifier, ZPS_CUT_TOPK, error);
      break;
    case ZENPS_SPARSIFY_BUCKETS:
      code = pick_greatest(sparsifier, ZPS_CUT_BUCKETS, error);
      break;
    case ZENPS_SPARSIFY_SAMPLED:
      code = run_sampled(sparsifier, error);
      break;
    case ZENPS_SPARSIFY_REUSED:
      code = run_reused(sparsifier, error);
      break;
    case ZENPS_SPARSIFY_THRESHOLD:
      code = run_threshold(sparsifier, error);
      break;
    case ZENPS_SPARSIFY_SCHEME:
      sparsifier->threshold = 0;
      code = wait(there, stream, error); /* the gradient is borrowed during the call */
      break;
    case ZENPS_SPARSIFY_GAUSSIAN: /* refused by the options */
      break;
  }
  if (code == ZPS_OK && sparsifier->options.capped && sparsifier->picks.n > zps_sparsifier_total_k(sparsifier)) {
    const uint64_t threshold = sparsifier->threshold;
    code = pick_greatest(sparsifier, ZPS_CUT_TOPK, error);
    sparsifier->threshold = threshold;
  }
  if (code == ZPS_OK) sparsifier->steps++;
  return code;
}

/* ------------------------------------------------------------ taking out */

zps_err_t zps_on_device_clear_picks(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  const struct zps_picks *const picks = &sparsifier->picks;
  if (picks->n == 0) return ZPS_OK;
  zps_err_t code =
      ops_of(there)->selector_clear(there->selector, &there->feedback, picks->ids, picks->n, there->stream, error);
  if (code == ZPS_OK) code = ops_of(there)->event_record(there->device, there->event, there->stream, error);
  there->is_clearing = code == ZPS_OK;
  return code;
}

static zps_err_t grow_here(struct ids *ids, uint64_t n, struct zps_error *error) {
  if (n <= ids->capacity_here) return ZPS_OK;
  if (!zps_enlarge(&ids->here, n, sizeof *ids->here))
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %llu row numbers", (unsigned long long)n);
  ids->capacity_here = n;
  return ZPS_OK;
}

zps_err_t zps_on_device_list_begin(struct zenps_sparsifier *sparsifier, uint64_t n_most, struct zps_error *error) {
  struct ids *const ids = &sparsifier->there->listed;
  ids->n = 0;
  return grow_here(ids, n_most, error);
}

void zps_on_device_list_add(struct zenps_sparsifier *sparsifier, uint64_t id) {
  struct ids *const ids = &sparsifier->there->listed;
  ids->here[ids->n++] = (int64_t)id;
}

zps_err_t zps_on_device_list_clear(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  const struct zps_device_ops *const ops = ops_of(there);
  struct ids *const ids = &there->listed;
  const size_t len_bytes = ids->n * sizeof *ids->here;
  zps_err_t code = ZPS_OK;
  if (ids->n == 0) return ZPS_OK;
  if (ids->n > ids->capacity_there) {
    void *grown;
    code = ops->allocate(there->device, ZPS_MEMORY_DEVICE, len_bytes, &grown, error);
    if (code != ZPS_OK) return code;
    ops->release(there->device, ZPS_MEMORY_DEVICE, ids->there);
    ids->there = grown;
    ids->capacity_there = ids->n;
  }
  code = ops->copy(there->device, ids->there, ids->here, len_bytes, there->stream, error);
  if (code == ZPS_OK)
    code = ops->selector_clear(there->selector, &there->feedback, ids->there, ids->n, there->stream, error);
  return code == ZPS_OK ? wait(there, there->stream, error) : code; /* the list is used again */
}

zps_err_t zps_on_device_fetch(struct zenps_sparsifier *sparsifier, enum zps_on_device_ids use,
                              const int64_t *ids_on_device, uint64_t n, const int64_t **ids_p,
                              struct zps_error *error) {
  struct zps_sparsifier_there *const there = sparsifier->there;
  struct ids *const ids = &there->fetched[use];
  zps_err_t code = grow_here(ids, n + 1, error);
  if (code == ZPS_OK && n > 0) {
    code = ops_of(there)->check(there->device, ids_on_device, n * sizeof *ids_on_device, error);
    if (code == ZPS_OK)
      code = ops_of(there)->copy(there->device, ids->here, ids_on_device, n * sizeof *ids->here, there->stream, error);
    if (code == ZPS_OK) code = wait(there, there->stream, error);
  }
  *ids_p = ids->here;
  return code;
}
