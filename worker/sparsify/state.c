/*
 * A sparsifier's state as bytes: a header, the residual, the velocity where there is one, and the rows of a selection
 * that was neither committed nor canceled. Numbers are little-endian; the header's checksum is of all that follows it.
 */
#include <inttypes.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/codec/dtype.h"
#include "worker/base/error.h"
#include "worker/sparsify/on_device.h"

enum { VERSION = 1 };
static const char MAGIC[8] = {'z', 'e', 'n', 'p', 's', 's', 'p', 'a'};

/* Without gaps, on every machine. */
struct header {
  char magic[8];
  uint32_t version, header_bytes;
  uint64_t len_bytes, checksum; /* of all of it; of what follows this number */
  uint64_t n, k, threshold, reused, age, steps, refined;
  uint64_t n_picked, n_listed; /* entries of the last selection; of these, the rows that are here */
  double given, gain, last;    /* ZENPS_SPARSIFY_THRESHOLD's; of the steering */
  uint32_t kind, dtype, has_velocity, selected;
};
enum { CHECKED_FROM = offsetof(struct header, n) };
_Static_assert(sizeof(struct header) == 32 + 12 * 8 + 16, "the header has no gaps");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as on the wire");

/* Where the arrays are in the buffer. */
struct places {
  uint64_t residual, velocity, ids, end, array_bytes;
};

static struct places places_of(const struct zenps_sparsifier *sparsifier, uint64_t n_listed) {
  struct places at = {.residual = sizeof(struct header),
                      .array_bytes = sparsifier->n * zps_dtype_size(sparsifier->dtype)};
  at.velocity = at.residual + at.array_bytes;
  at.ids = at.velocity + (sparsifier->feedback.velocity ? at.array_bytes : 0);
  at.end = at.ids + n_listed * sizeof(int64_t);
  return at;
}

static uint64_t checksum_of(const char *bytes, uint64_t len) {
  uint64_t sum = len, word;
  for (; len >= sizeof word; bytes += sizeof word, len -= sizeof word) {
    memcpy(&word, bytes, sizeof word);
    sum = zps_hash_mix64(sum ^ word);
  }
  word = 0;
  memcpy(&word, bytes, len);
  return zps_hash_mix64(sum ^ word);
}

/* ------------------------------------------------------------ save */

static struct header header_of(const struct zenps_sparsifier *sparsifier) {
  const bool lists = sparsifier->selected && !zps_sparsifier_selects_nothing(sparsifier);
  struct header header = {.version = VERSION,
                          .header_bytes = sizeof header,
                          .n = sparsifier->n,
                          .k = sparsifier->options.k,
                          .threshold = sparsifier->threshold,
                          .reused = sparsifier->reused,
                          .age = sparsifier->age,
                          .steps = sparsifier->steps,
                          .refined = sparsifier->refined,
                          .n_picked = sparsifier->picks.n,
                          .n_listed = lists ? sparsifier->picks.n : 0,
                          .given = sparsifier->options.threshold,
                          .gain = sparsifier->steer.gain,
                          .last = sparsifier->steer.last,
                          .kind = (uint32_t)sparsifier->options.kind,
                          .dtype = (uint32_t)sparsifier->dtype,
                          .has_velocity = sparsifier->feedback.velocity != NULL,
                          .selected = sparsifier->selected};
  memcpy(header.magic, MAGIC, sizeof MAGIC);
  header.len_bytes = places_of(sparsifier, header.n_listed).end;
  return header;
}

/* To the buffer, or from there. */
static zps_err_t copy_arrays(struct zenps_sparsifier *sparsifier, char *bytes, const struct places *at, bool is_load,
                             struct zps_error *error) {
  const struct {
    void *own;
    uint64_t at, len;
  } arrays[] = {{sparsifier->feedback.residual, at->residual, at->velocity - at->residual},
                {sparsifier->feedback.velocity, at->velocity, at->ids - at->velocity},
                {sparsifier->picks.ids, at->ids, at->end - at->ids}};
  zps_err_t code = ZPS_OK;
  for (unsigned i = 0; i < sizeof arrays / sizeof arrays[0] && code == ZPS_OK; i++) {
    void *const to = is_load ? arrays[i].own : bytes + arrays[i].at;
    const void *const from = is_load ? bytes + arrays[i].at : arrays[i].own;
    if (arrays[i].len == 0) continue;
    if (sparsifier->there)
      code = zps_on_device_copy(sparsifier, to, from, arrays[i].len, error);
    else
      memcpy(to, from, arrays[i].len);
  }
  return code;
}

zenps_status_t zenps_sparsifier_save(const zenps_sparsifier_t *sparsifier, void *buffer, size_t capacity,
                                     size_t *needed) {
  struct zps_error error;
  if (!sparsifier || !needed || (!buffer && capacity > 0))
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_save: sparsifier, buffer or needed is NULL");
  struct header header = header_of(sparsifier);
  const struct places at = places_of(sparsifier, header.n_listed);
  *needed = at.end;
  if (capacity < at.end)
    return zps_worker_fail(ZPS_ERR_TRUNCATED, "zenps_sparsifier_save: the state takes %" PRIu64 " bytes, room for %zu",
                           at.end, capacity);
  const zps_err_t code =
      copy_arrays((struct zenps_sparsifier *)(uintptr_t)sparsifier, buffer, &at, false, &error); /* reads it */
  if (code != ZPS_OK) return zps_worker_fail(code, "zenps_sparsifier_save: %s", error.text);
  memcpy(buffer, &header, sizeof header);
  header.checksum = checksum_of((char *)buffer + CHECKED_FROM, at.end - CHECKED_FROM);
  memcpy(buffer, &header, sizeof header);
  return ZENPS_OK;
}

/* ------------------------------------------------------------ load */

static zps_err_t check_bytes(const char *bytes, size_t len, struct header *header, struct zps_error *error) {
  if (len < sizeof *header)
    return zps_fail(error, ZPS_ERR_INVALID, "%zu bytes are no state of a sparsifier: its header alone has %zu", len,
                    sizeof *header);
  memcpy(header, bytes, sizeof *header);
  if (memcmp(header->magic, MAGIC, sizeof MAGIC) != 0)
    return zps_fail(error, ZPS_ERR_INVALID, "the bytes are no state of a sparsifier: they do not begin like one");
  if (header->version != VERSION || header->header_bytes != sizeof *header)
    return zps_fail(error, ZPS_ERR_VERSION, "the state is of format %" PRIu32 ", this library reads format %d",
                    header->version, VERSION);
  if (header->len_bytes != len)
    return zps_fail(error, ZPS_ERR_INVALID, "the state has %" PRIu64 " bytes, but %zu are given", header->len_bytes,
                    len);
  if (header->checksum != checksum_of(bytes + CHECKED_FROM, len - CHECKED_FROM))
    return zps_fail(error, ZPS_ERR_INVALID, "the state's bytes have changed: their checksum is another one");
  return ZPS_OK;
}

static zps_err_t check_same(const struct zenps_sparsifier *sparsifier, const struct header *header,
                            struct zps_error *error) {
  const bool has_velocity = sparsifier->feedback.velocity;
  if (header->n != sparsifier->n)
    return zps_fail(error, ZPS_ERR_SHAPE, "the state is of %" PRIu64 " values, the sparsifier has %" PRIu64, header->n,
                    sparsifier->n);
  if (header->kind != (uint32_t)sparsifier->options.kind)
    return zps_fail(error, ZPS_ERR_SHAPE, "the state is of kind %" PRIu32 ", the sparsifier of kind %d", header->kind,
                    (int)sparsifier->options.kind);
  if (header->dtype != (uint32_t)sparsifier->dtype)
    return zps_fail(error, ZPS_ERR_SHAPE, "the state is of %s, the sparsifier of %s",
                    zps_dtype_name((enum zps_dtype)header->dtype), zps_dtype_name(sparsifier->dtype));
  if (header->has_velocity != has_velocity)
    return zps_fail(error, ZPS_ERR_SHAPE, "the state is %s momentum, the sparsifier %s it",
                    header->has_velocity ? "with" : "without", has_velocity ? "with" : "without");
  return ZPS_OK;
}

/* Of bytes that another library may have made: rows that ascend, and numbers that this sparsifier could have. */
static zps_err_t check_numbers(const struct zenps_sparsifier *sparsifier, const struct header *header,
                               const char *bytes, struct zps_error *error) {
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  const uint64_t domain = options->kind == ZENPS_SPARSIFY_BUCKETS ? options->bucket : sparsifier->n;
  const bool lists = header->selected && !zps_sparsifier_selects_nothing(sparsifier);
  if (header->k < 1 || header->k > domain)
    return zps_fail(error, ZPS_ERR_INVALID, "the state has k %" PRIu64 "; it must be 1 to %" PRIu64, header->k, domain);
  if (!(header->given >= 0) || header->selected > 1 || header->n_picked > sparsifier->n ||
      header->n_listed != (lists ? header->n_picked : 0) || header->age > UINT32_MAX ||
      header->len_bytes != places_of(sparsifier, header->n_listed).end)
    return zps_fail(error, ZPS_ERR_INVALID, "the state's numbers do not agree with each other");
  int64_t before = -1;
  for (uint64_t i = 0; i < header->n_listed; i++) {
    int64_t id;
    memcpy(&id, bytes + places_of(sparsifier, 0).ids + i * sizeof id, sizeof id);
    if (id <= before || (uint64_t)id >= sparsifier->n)
      return zps_fail(error, ZPS_ERR_INVALID, "the state's selection has row %" PRId64 " after %" PRId64, id, before);
    before = id;
  }
  return ZPS_OK;
}

/* Room for the picks of the state's k; of the sparsifier nothing else changes. */
static zps_err_t make_room(struct zenps_sparsifier *sparsifier, const struct header *header, struct zps_error *error) {
  const uint64_t k = sparsifier->options.k;
  sparsifier->options.k = header->k;
  zps_err_t code = zps_sparsifier_reserve(sparsifier, error);
  sparsifier->options.k = k;
  if (code == ZPS_OK && header->n_listed > sparsifier->picks.capacity)
    code =
        zps_fail(error, ZPS_ERR_INVALID, "the state's selection has %" PRIu64 " rows, more than k %" PRIu64 " can give",
                 header->n_listed, header->k);
  return code;
}

zenps_status_t zenps_sparsifier_load(zenps_sparsifier_t *sparsifier, const void *buffer, size_t len) {
  struct header header;
  struct zps_error error;
  if (!sparsifier || !buffer)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_load: sparsifier or buffer is NULL");
  if (sparsifier->selected)
    return zps_worker_fail(ZPS_ERR_BUSY,
                           "zenps_sparsifier_load: selection %" PRIu64 " was neither committed nor canceled",
                           sparsifier->steps);
  zps_err_t code = check_bytes(buffer, len, &header, &error);
  if (code == ZPS_OK) code = check_same(sparsifier, &header, &error);
  if (code == ZPS_OK) code = check_numbers(sparsifier, &header, buffer, &error);
  if (code == ZPS_OK) code = make_room(sparsifier, &header, &error);
  const struct places at = places_of(sparsifier, code == ZPS_OK ? header.n_listed : 0);
  if (code == ZPS_OK)
    code = copy_arrays(sparsifier, (char *)(uintptr_t)buffer, &at, true, &error); /* reads the buffer */
  if (code != ZPS_OK) return zps_worker_fail(code, "zenps_sparsifier_load: %s", error.text);
  sparsifier->options.k = header.k;
  sparsifier->options.threshold = header.given;
  sparsifier->threshold = header.threshold;
  sparsifier->reused = header.reused;
  sparsifier->steer = (struct zps_steer){.gain = header.gain, .last = header.last};
  sparsifier->age = (uint32_t)header.age;
  sparsifier->steps = header.steps;
  sparsifier->refined = header.refined;
  sparsifier->picks.n = header.n_picked;
  sparsifier->selected = header.selected;
  return ZENPS_OK;
}
