#include "proto/control_scheme.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/text.h"
#include "common/codec/partition.h"

bool zps_scheme_spec_is_auto(const struct zps_scheme_spec *scheme) {
  return strcmp(scheme->name, zps_plan_scheme_name(ZPS_PLAN_AUTO)) == 0;
}

bool zps_scheme_spec_same(const struct zps_scheme_spec *a, const struct zps_scheme_spec *b) {
  return strcmp(a->name, b->name) == 0 && strcmp(a->between, b->between) == 0 && a->choices == b->choices &&
         a->of_rows == b->of_rows && a->of_width == b->of_width && a->n_levels == b->n_levels &&
         memcmp(a->levels, b->levels, a->n_levels * sizeof a->levels[0]) == 0 && a->k == b->k &&
         a->chunks == b->chunks && a->bits == b->bits && a->boundary_period == b->boundary_period &&
         a->threshold_period == b->threshold_period && a->without == b->without && a->allgather == b->allgather &&
         a->delta == b->delta && memcmp(a->algorithms, b->algorithms, a->n_levels * sizeof a->algorithms[0]) == 0;
}

static const char *const gathers[] = {"auto", "direct", "doubling"};
static const char *const algorithms[] = {"auto", "ring", "doubling"};
enum { N_GATHERS = sizeof gathers / sizeof gathers[0], N_ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

#define SAY(text, ...) zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, __VA_ARGS__)

const char *zps_scheme_spec_text(const struct zps_scheme_spec *scheme, char *text) {
  text[0] = '\0';
  SAY(text, "%s%s%s", scheme->name[0] ? scheme->name : "balanced", scheme->between[0] ? ":" : "", scheme->between);
  for (unsigned i = 0, n = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (scheme->choices >> i & 1) SAY(text, "%c%s", n++ ? ',' : ':', zps_plan_scheme_name((enum zps_plan_scheme)i));
  if (scheme->of_rows) SAY(text, " of %" PRIu64 "x%" PRIu32, scheme->of_rows, scheme->of_width);
  if (scheme->k) SAY(text, " k=%" PRIu64, scheme->k);
  for (uint32_t i = 0; i < scheme->n_levels; i++)
    SAY(text, "%s%" PRIu32 "%.1s", i ? "x" : " levels=", scheme->levels[i],
        scheme->algorithms[i] ? algorithms[scheme->algorithms[i]] : "");
  if (scheme->chunks) SAY(text, " chunks=%" PRIu32, scheme->chunks);
  if (scheme->bits) SAY(text, " bits=%" PRIu32, scheme->bits);
  if (scheme->boundary_period) SAY(text, " boundary_period=%" PRIu32, scheme->boundary_period);
  if (scheme->threshold_period) SAY(text, " threshold_period=%" PRIu32, scheme->threshold_period);
  char parts[ZPS_WITHOUT_TEXT_MAX + 1];
  if (scheme->without) SAY(text, " without=%s", zps_without_text(scheme->without, parts));
  if (scheme->allgather) SAY(text, " allgather=%s", gathers[scheme->allgather]);
  if (scheme->delta > 0) SAY(text, " delta=%g", scheme->delta);
  return text;
}

/* ------------------------------------------------------------ the member "scheme" */

static const char *scheme_word(unsigned scheme) {
  return zps_plan_scheme_name((enum zps_plan_scheme)scheme);
}
static const char *gather_word(unsigned gather) {
  return gathers[gather];
}
static const char *algorithm_word(unsigned algorithm) {
  return algorithms[algorithm];
}

/* Bits as the names of those that are set. */
static zps_json *put_bits(unsigned bits, const char *(*word)(unsigned)) {
  zps_json *array = zps_json_array();
  for (unsigned i = 0; bits >> i; i++)
    if (bits >> i & 1) array = zps_json_append_str(array, word(i));
  return array;
}

static zps_err_t take_bits(const zps_json *names, const char *key, unsigned *bits_p,
                           zps_err_t (*parse)(const char *, size_t, unsigned *, struct zps_error *),
                           struct zps_error *error) {
  zps_err_t err = zps_json_check_array(names, key, error);
  for (size_t i = 0; !err && i < zps_json_array_len(names); i++) {
    const char *name = NULL;
    unsigned one = 0;
    err = zps_json_read_str(zps_json_at(names, i), key, &name, error);
    if (!err) err = parse(name, strlen(name), &one, error);
    *bits_p |= one;
  }
  return err || *bits_p ? err : zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is empty, want names", key);
}

static zps_json *put_choices(const void *at) {
  return put_bits(*(const unsigned *)at, scheme_word);
}
static zps_err_t take_choices(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  return take_bits(value, key, at, zps_plan_schemes_parse, error);
}
static zps_json *put_without(const void *at) {
  return put_bits(*(const unsigned *)at, zps_without_name);
}
static zps_err_t take_without(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  return take_bits(value, key, at, zps_without_parse, error);
}

static zps_json *put_delta(const void *at) {
  return zps_json_real(*(const double *)at);
}
static zps_err_t take_delta(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  double *const delta = at;
  if (zps_json_read_real(value, key, delta, NULL) == ZPS_OK && *delta > 0 && *delta <= 1) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is no number over 0 and at most 1", key);
}

static zps_err_t check_scheme(void *read, struct zps_error *error) {
  const struct zps_scheme_spec *const scheme = read;
  if (scheme->of_rows && !scheme->of_width)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'of_width' is missing, want 1 or more beside 'of_rows'");
  if (scheme->bits == 0 || scheme->bits == 2 || scheme->bits == 4 || scheme->bits == 8) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'bits' is %u, want 2, 4 or 8", scheme->bits);
}

#define AT(member) ZPS_FIELD_AT(struct zps_scheme_spec, member), .optional = true
static const struct zps_field scheme_rows[] = {
    {"name", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_scheme_spec, name), .min = 1, .text = "balanced"},
    {"between", ZPS_FIELD_TEXT, AT(between), .min = 1},
    {"choices", ZPS_FIELD_OTHER, AT(choices), .put = put_choices, .take = take_choices, .form = "list of names"},
    {"of_rows", ZPS_FIELD_NUMBER, AT(of_rows), .min = 1, .max = ZPS_PARTITION_ROWS_MAX},
    {"of_width", ZPS_FIELD_NUMBER, AT(of_width), .min = 1},
    {"k", ZPS_FIELD_NUMBER, AT(k), .min = 1, .max = ZPS_PARTITION_ROWS_MAX},
    {"levels", ZPS_FIELD_NUMBER, ZPS_FIELD_ROW_AT(struct zps_scheme_spec, levels, n_levels), .n_min = 1,
     .max = ZPS_WORLD_MAX, .optional = true},
    {"chunks", ZPS_FIELD_NUMBER, AT(chunks), .min = 2, .max = ZPS_SCHEME_CHUNKS_MAX},
    {"bits", ZPS_FIELD_NUMBER, AT(bits), .min = 2, .max = 8},
    {"boundary_period", ZPS_FIELD_NUMBER, AT(boundary_period), .min = 1},
    {"threshold_period", ZPS_FIELD_NUMBER, AT(threshold_period), .min = 1},
    {"without", ZPS_FIELD_OTHER, AT(without), .put = put_without, .take = take_without, .form = "list of names"},
    {"allgather", ZPS_FIELD_WORD, AT(allgather), .word = gather_word, .max = N_GATHERS - 1},
    {"delta", ZPS_FIELD_OTHER, AT(delta), .put = put_delta, .take = take_delta, .form = "real"},
    {"level_algorithms", ZPS_FIELD_WORD, ZPS_FIELD_ROW_AT(struct zps_scheme_spec, algorithms, n_levels),
     .per = "levels", .word = algorithm_word, .max = N_ALGORITHMS - 1, .optional = true},
};
#undef AT
const struct zps_fields zps_control_scheme = {ZPS_FIELDS_OF(struct zps_scheme_spec, scheme_rows),
                                              .check = check_scheme};
