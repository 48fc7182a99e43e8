#include "proto/control_scheme.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/text.h"

bool zps_scheme_spec_is_auto(const struct zps_scheme_spec *scheme) {
  return strcmp(scheme->name, zps_plan_scheme_name(ZPS_PLAN_AUTO)) == 0;
}

bool zps_scheme_spec_same(const struct zps_scheme_spec *a, const struct zps_scheme_spec *b) {
  return strcmp(a->name, b->name) == 0 && strcmp(a->between, b->between) == 0 && a->choices == b->choices &&
         a->of_rows == b->of_rows && a->of_width == b->of_width && zps_scheme_options_same(&a->options, &b->options);
}

#define SAY(text, ...) zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, __VA_ARGS__)

const char *zps_scheme_spec_text(const struct zps_scheme_spec *scheme, char *text) {
  text[0] = '\0';
  SAY(text, "%s%s%s", scheme->name[0] ? scheme->name : "balanced", scheme->between[0] ? ":" : "", scheme->between);
  for (unsigned i = 0, n = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (scheme->choices >> i & 1) SAY(text, "%c%s", n++ ? ',' : ':', zps_plan_scheme_name((enum zps_plan_scheme)i));
  zps_scheme_options_add(&scheme->options, text);
  if (scheme->of_rows) SAY(text, " of %" PRIu64 "x%" PRIu32, scheme->of_rows, scheme->of_width);
  return text;
}

/* ------------------------------------------------------------ the member "scheme" */

static const char *scheme_word(unsigned scheme) {
  return zps_plan_scheme_name((enum zps_plan_scheme)scheme);
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

static zps_json *put_share(const void *at) {
  return zps_json_real(*(const double *)at);
}
static zps_err_t take_share(const zps_json *value, const char *key, void *at, struct zps_error *error) {
  double *const share = at;
  if (zps_json_read_real(value, key, share, NULL) == ZPS_OK && *share > 0 && *share <= 1) return ZPS_OK;
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
#define FIELD_COUNT(member, least, most, word) {#member, ZPS_FIELD_NUMBER, AT(member), .min = (least), .max = (most)},
#define FIELD_NUMBER FIELD_COUNT
#define FIELD_BITS FIELD_COUNT
#define FIELD_SHARE(member, least, most, word) \
  {#member, ZPS_FIELD_OTHER, AT(member), .put = put_share, .take = take_share, .form = "real"},
#define FIELD_WORD(member, least, most, words) {#member, ZPS_FIELD_WORD, AT(member), .word = (words), .max = (most)},
#define FIELD_PARTS(member, least, most, word) \
  {#member, ZPS_FIELD_OTHER, AT(member), .put = put_without, .take = take_without, .form = "list of names"},
#define FIELD_LEVELS(member, least, most, word)                                                          \
  {#member,          ZPS_FIELD_NUMBER,     ZPS_FIELD_ROW_AT(struct zps_scheme_spec, member, n_##member), \
   .n_min = (least), .max = ZPS_WORLD_MAX, .optional = true},
#define PLACE_WIRE(kind, member, least, most, word) FIELD_##kind(member, least, most, word)
#define PLACE_HERE(kind, member, least, most, word)
#define OPTION(kind, place, member, name, least, most, absent, word, schemes, help) \
  PLACE_##place(kind, member, least, most, word)
#define LEVEL_ALGORITHMS                                                                                \
  {                                                                                                     \
    "level_algorithms", ZPS_FIELD_WORD, ZPS_FIELD_ROW_AT(struct zps_scheme_spec, algorithms, n_levels), \
        .per = "levels", .word = zps_level_algorithm_name, .max = ZPS_LEVEL_DOUBLING, .optional = true  \
  }
static const struct zps_field scheme_rows[] = {
    {"name", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_scheme_spec, name), .min = 1, .text = "balanced"},
    {"between", ZPS_FIELD_TEXT, AT(between), .min = 1},
    {"choices", ZPS_FIELD_OTHER, AT(choices), .put = put_choices, .take = take_choices, .form = "list of names"},
    {"of_rows", ZPS_FIELD_NUMBER, AT(of_rows), .min = 1, .max = ZPS_PARTITION_ROWS_MAX},
    {"of_width", ZPS_FIELD_NUMBER, AT(of_width), .min = 1},
    ZPS_SCHEME_OPTION_LIST(OPTION) LEVEL_ALGORITHMS};
#undef AT
const struct zps_fields zps_control_scheme = {ZPS_FIELDS_OF(struct zps_scheme_spec, scheme_rows),
                                              .check = check_scheme};
