#include "proto/control_scheme.h"

#include <inttypes.h>
#include <stdlib.h>
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

static const char *const gathers[] = {"auto", "direct", "doubling", NULL};
static const char *const algorithms[] = {"auto", "ring", "doubling", NULL};

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

static zps_json *choices_array(unsigned choices) {
  zps_json *array = zps_json_array();
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (choices >> i & 1) array = zps_json_append_str(array, zps_plan_scheme_name((enum zps_plan_scheme)i));
  return array;
}

static zps_json *without_array(unsigned without) {
  zps_json *array = zps_json_array();
  for (unsigned i = 0; zps_without_name(i); i++)
    if (without >> i & 1) array = zps_json_append_str(array, zps_without_name(i));
  return array;
}

/* NULL where all levels are as they come. */
static zps_json *algorithms_array(const struct zps_scheme_spec *scheme) {
  bool any = false;
  for (uint32_t i = 0; i < scheme->n_levels; i++) any |= scheme->algorithms[i] != 0;
  if (!any) return NULL;
  zps_json *array = zps_json_array();
  for (uint32_t i = 0; i < scheme->n_levels; i++) array = zps_json_append_str(array, algorithms[scheme->algorithms[i]]);
  return array;
}

zps_json *zps_control_scheme_write(zps_json *object, const struct zps_scheme_spec *scheme) {
  zps_json *member = zps_json_set_str(zps_json_object(), "name", scheme->name[0] ? scheme->name : "balanced");
  if (scheme->between[0]) member = zps_json_set_str(member, "between", scheme->between);
  if (scheme->choices) member = zps_json_set(member, "choices", choices_array(scheme->choices));
  if (scheme->of_rows) {
    member = zps_json_set_u64(member, "of_rows", scheme->of_rows);
    member = zps_json_set_u64(member, "of_width", scheme->of_width);
  }
  if (scheme->k) member = zps_json_set_u64(member, "k", scheme->k);
  if (scheme->n_levels) member = zps_control_set_u32s(member, "levels", scheme->levels, scheme->n_levels);
  if (scheme->chunks) member = zps_json_set_u64(member, "chunks", scheme->chunks);
  if (scheme->bits) member = zps_json_set_u64(member, "bits", scheme->bits);
  if (scheme->boundary_period) member = zps_json_set_u64(member, "boundary_period", scheme->boundary_period);
  if (scheme->threshold_period) member = zps_json_set_u64(member, "threshold_period", scheme->threshold_period);
  if (scheme->without) member = zps_json_set(member, "without", without_array(scheme->without));
  if (scheme->allgather) member = zps_json_set_str(member, "allgather", gathers[scheme->allgather]);
  if (scheme->delta > 0) member = zps_json_set_real(member, "delta", scheme->delta);
  zps_json *const of_levels = algorithms_array(scheme);
  if (of_levels) member = zps_json_set(member, "level_algorithms", of_levels);
  return zps_json_set(object, "scheme", member);
}

static zps_err_t read_choices(const zps_json *from, unsigned *choices_p, struct zps_error *error) {
  const zps_json *array;
  zps_err_t err = zps_json_get_array(from, "choices", &array, error);
  for (size_t i = 0; !err && i < zps_json_array_len(array); i++) {
    const char *name = NULL;
    unsigned one = 0;
    err = zps_json_at_str(array, i, &name, error);
    if (!err) err = zps_plan_schemes_parse(name, strlen(name), &one, error);
    *choices_p |= one;
  }
  if (err || *choices_p) return err;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'choices' is empty, want names of schemes");
}

static zps_err_t read_without(const zps_json *from, unsigned *without_p, struct zps_error *error) {
  const zps_json *array;
  zps_err_t err = zps_json_get_array(from, "without", &array, error);
  for (size_t i = 0; !err && i < zps_json_array_len(array); i++) {
    const char *name = NULL;
    unsigned one = 0;
    err = zps_json_at_str(array, i, &name, error);
    if (!err) err = zps_without_parse(name, strlen(name), &one, error);
    *without_p |= one;
  }
  if (err || *without_p) return err;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'without' is empty, want names of parts");
}

static zps_err_t read_levels(const zps_json *from, struct zps_scheme_spec *scheme, struct zps_error *error) {
  uint32_t *levels;
  const zps_err_t err =
      zps_control_get_u32s(from, "levels", ZPS_SCHEME_LEVELS_MAX, ZPS_WORLD_MAX + 1, &levels, &scheme->n_levels, error);
  if (err) return err;
  memcpy(scheme->levels, levels, scheme->n_levels * sizeof levels[0]);
  free(levels);
  return ZPS_OK;
}

static zps_err_t read_bits(const zps_json *from, uint32_t *bits_p, struct zps_error *error) {
  const zps_err_t err = zps_control_get_u32(from, "bits", 2, 8, bits_p, error);
  if (err || *bits_p == 2 || *bits_p == 4 || *bits_p == 8) return err;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'bits' is %u, want 2, 4 or 8", *bits_p);
}

/* The number of a word among `words`. */
static zps_err_t read_word(const char *word, const char *key, const char *const *words, unsigned *number_p,
                           struct zps_error *error) {
  for (unsigned i = 0; words[i]; i++) {
    if (strcmp(word, words[i]) != 0) continue;
    *number_p = i;
    return ZPS_OK;
  }
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is '%.40s', want %s, %s or %s", key, word, words[0], words[1],
                  words[2]);
}

static zps_err_t read_allgather(const zps_json *from, unsigned *allgather_p, struct zps_error *error) {
  const char *word = NULL;
  const zps_err_t err = zps_json_get_str(from, "allgather", &word, error);
  return err ? err : read_word(word, "allgather", gathers, allgather_p, error);
}

static zps_err_t read_delta(const zps_json *from, double *delta_p, struct zps_error *error) {
  *delta_p = zps_json_opt_real(from, "delta", -1);
  if (*delta_p > 0 && *delta_p <= 1) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'delta' is no number over 0 and at most 1");
}

static zps_err_t read_algorithms(const zps_json *from, struct zps_scheme_spec *scheme, struct zps_error *error) {
  const zps_json *array;
  zps_err_t err = zps_json_get_array(from, "level_algorithms", &array, error);
  if (!err && scheme->n_levels > 0 && zps_json_array_len(array) != scheme->n_levels)
    return zps_fail(error, ZPS_ERR_PROTOCOL,
                    "member 'level_algorithms' has %zu of them, want one for each of %u levels",
                    zps_json_array_len(array), scheme->n_levels);
  for (uint32_t i = 0; !err && i < scheme->n_levels; i++) {
    const char *word = NULL;
    err = zps_json_at_str(array, i, &word, error);
    if (!err) err = read_word(word, "level_algorithms", algorithms, &scheme->algorithms[i], error);
  }
  return err;
}

zps_err_t zps_control_scheme_read(const zps_json *object, struct zps_scheme_spec *scheme, struct zps_error *error) {
  const zps_json *from = NULL;
  *scheme = (struct zps_scheme_spec){.name = "balanced"};
  if (!zps_json_get(object, "scheme")) return ZPS_OK;
  zps_err_t err = zps_json_get_object(object, "scheme", &from, error);
#define OPTION(key) if (!err && zps_json_get(from, key))
  if (!err) err = zps_control_get_text(from, "name", 1, ZPS_SCHEME_NAME_MAX, scheme->name, error);
  OPTION("between") err = zps_control_get_text(from, "between", 1, ZPS_SCHEME_NAME_MAX, scheme->between, error);
  OPTION("choices") err = read_choices(from, &scheme->choices, error);
  OPTION("of_rows") err = zps_json_get_u64(from, "of_rows", 1, ZPS_PARTITION_ROWS_MAX, &scheme->of_rows, error);
  if (!err && scheme->of_rows) err = zps_control_get_u32(from, "of_width", 1, UINT32_MAX, &scheme->of_width, error);
  OPTION("k") err = zps_json_get_u64(from, "k", 1, ZPS_PARTITION_ROWS_MAX, &scheme->k, error);
  OPTION("levels") err = read_levels(from, scheme, error);
  OPTION("chunks") err = zps_control_get_u32(from, "chunks", 2, ZPS_SCHEME_CHUNKS_MAX, &scheme->chunks, error);
  OPTION("bits") err = read_bits(from, &scheme->bits, error);
  OPTION("boundary_period")
  err = zps_control_get_u32(from, "boundary_period", 1, UINT32_MAX, &scheme->boundary_period, error);
  OPTION("threshold_period")
  err = zps_control_get_u32(from, "threshold_period", 1, UINT32_MAX, &scheme->threshold_period, error);
  OPTION("without") err = read_without(from, &scheme->without, error);
  OPTION("allgather") err = read_allgather(from, &scheme->allgather, error);
  OPTION("delta") err = read_delta(from, &scheme->delta, error);
  OPTION("level_algorithms") err = read_algorithms(from, scheme, error);
#undef OPTION
  return err;
}
