/* One option's names and the parsing of its value. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/config_impl.h"

void zps_opt_flag_name(const struct zps_opt *opt, char name[ZPS_OPT_NAME_SIZE]) {
  snprintf(name, ZPS_OPT_NAME_SIZE, "%s", opt->name);
  for (char *c = name; *c; c++)
    if (*c == '.' || *c == '_') *c = '-';
}

void zps_opt_env_name(const struct zps_opt *opt, char name[ZPS_OPT_NAME_SIZE]) {
  snprintf(name, ZPS_OPT_NAME_SIZE, "ZENPS_%s", opt->name);
  for (char *c = name; *c; c++) *c = *c == '.' || *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

size_t zps_opt_field_size(enum zps_opt_type type) {
  switch (type) {
    case ZPS_OPT_BOOL:
      return sizeof(bool);
    case ZPS_OPT_DOUBLE:
      return sizeof(double);
    case ZPS_OPT_ENUM:
      return sizeof(int);
    case ZPS_OPT_STRING:
      return sizeof(char *);
    case ZPS_OPT_GONE:
      return 0;
    default:
      return sizeof(uint64_t);
  }
}

static bool bounded_above(const struct zps_opt *opt) {
  return opt->max != 0 || opt->min < 0;
}

static void expected_number(const struct zps_opt *opt, const char *what, const char *comma, const char *unit,
                            char *text, size_t size) {
  if (bounded_above(opt)) {
    snprintf(text, size, "%s%s from %.15g to %.15g%s", what, comma, opt->min, opt->max, unit);
  } else if (opt->min != 0) {
    snprintf(text, size, "%s%s of at least %.15g%s", what, comma, opt->min, unit);
  } else {
    snprintf(text, size, "%s", what);
  }
}

void zps_opt_expected(const struct zps_opt *opt, char *text, size_t size) {
  switch (opt->type) {
    case ZPS_OPT_STRING:
      snprintf(text, size, "%s", opt->arg ? opt->arg : "text");
      return;
    case ZPS_OPT_GONE:
      snprintf(text, size, "left out");
      return;
    case ZPS_OPT_BOOL:
      snprintf(text, size, "yes or no");
      return;
    case ZPS_OPT_UINT:
      expected_number(opt, "a whole number", "", "", text, size);
      return;
    case ZPS_OPT_DOUBLE:
      expected_number(opt, "a number", "", "", text, size);
      return;
    case ZPS_OPT_BYTES:
      expected_number(opt, "a whole number of bytes, or one with K, M or G behind it (64M)", ",", "", text, size);
      return;
    case ZPS_OPT_DURATION:
      expected_number(opt, "a time in seconds, or one with ms, s, m or h behind it (500ms)", ",", " ms", text, size);
      return;
    case ZPS_OPT_ENUM:
      break;
  }
  size_t used = (size_t)snprintf(text, size, "one of ");
  for (const char *const *value = opt->values; *value && used < size; value++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", value == opt->values ? "" : ", ", *value);
}

/* Digits only: strtoull() itself takes signs and leading blanks. */
static bool parse_digits(const char *text, const char **end_p, uint64_t *value_p) {
  if (!isdigit((unsigned char)*text)) return false;
  char *end;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno) return false;
  *end_p = end;
  *value_p = value;
  return true;
}

/* Decimal and finite: strtod() itself takes blanks, hexadecimal, "inf" and "nan". */
static bool parse_number(const char *text, const char **end_p, double *value_p) {
  const char *digits = *text == '-' ? text + 1 : text;
  if (!isdigit((unsigned char)*digits) && *digits != '.') return false;
  if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) return false;
  char *end;
  const double value = strtod(text, &end);
  if (end == text || !isfinite(value)) return false;
  *end_p = end;
  *value_p = value;
  return true;
}

static bool parse_bool(const char *text, bool *value_p) {
  static const char *const words[][2] = {{"no", "yes"}, {"false", "true"}, {"off", "on"}, {"0", "1"}};
  for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
    for (unsigned value = 0; value < 2; value++) {
      if (strcasecmp(text, words[i][value]) == 0) {
        *value_p = value;
        return true;
      }
    }
  }
  return false;
}

static bool parse_bytes(const char *text, uint64_t *value_p) {
  const char *end;
  uint64_t value;
  if (!parse_digits(text, &end, &value)) return false;
  static const char suffixes[] = "KMG";
  if (*end) {
    const char *suffix = strchr(suffixes, toupper((unsigned char)*end));
    if (!suffix || end[1]) return false;
    const unsigned shift = 10u * (unsigned)(suffix - suffixes + 1);
    if (value > UINT64_MAX >> shift) return false;
    value <<= shift;
  }
  *value_p = value;
  return true;
}

static bool parse_duration(const char *text, uint64_t *ms_p) {
  static const struct {
    const char *suffix;
    double ms;
  } units[] = {{"", 1e3}, {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}};
  const char *end;
  double value;
  if (!parse_number(text, &end, &value) || value < 0) return false;
  for (unsigned i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strcmp(end, units[i].suffix) != 0) continue;
    if (value * units[i].ms > 1e15) return false; /* 31,000 years; keeps deadlines in nanoseconds from overflowing */
    *ms_p = (uint64_t)(value * units[i].ms + 0.5);
    return true;
  }
  return false;
}

static bool in_range(const struct zps_opt *opt, double value) {
  return value >= opt->min && (!bounded_above(opt) || value <= opt->max);
}

static bool parse(const struct zps_opt *opt, const char *text, void *field) {
  const char *end;
  double number;
  uint64_t whole;
  switch (opt->type) {
    case ZPS_OPT_STRING:
    case ZPS_OPT_GONE:
      return false;
    case ZPS_OPT_BOOL:
      return parse_bool(text, field);
    case ZPS_OPT_BYTES:
      if (!parse_bytes(text, &whole) || !in_range(opt, (double)whole)) return false;
      *(uint64_t *)field = whole;
      return true;
    case ZPS_OPT_DURATION:
      if (!parse_duration(text, &whole) || !in_range(opt, (double)whole)) return false;
      *(uint64_t *)field = whole;
      return true;
    case ZPS_OPT_UINT:
      if (!parse_digits(text, &end, &whole) || *end || !in_range(opt, (double)whole)) return false;
      *(uint64_t *)field = whole;
      return true;
    case ZPS_OPT_DOUBLE:
      if (!parse_number(text, &end, &number) || *end) return false;
      if ((opt->min != 0 || opt->max != 0) && !in_range(opt, number)) return false;
      *(double *)field = number;
      return true;
    case ZPS_OPT_ENUM:
      for (int i = 0; opt->values[i]; i++) {
        if (strcmp(text, opt->values[i]) != 0) continue;
        *(int *)field = i;
        return true;
      }
      return false;
  }
  return false;
}

static const char *meant_value(const struct zps_opt *opt, const char *text, char *meant, size_t size) {
  struct zps_near near;
  zps_near_begin(&near, text, strlen(text));
  if (opt->type == ZPS_OPT_ENUM)
    for (const char *const *value = opt->values; *value; value++) zps_near_try(&near, *value);
  return zps_near_say(&near, "; did you mean '", "'?", meant, size);
}

zps_err_t zps_opt_set(const struct zps_opt *opt, void *config, const char *text, const char *origin,
                      struct zps_error *error) {
  if (opt->type == ZPS_OPT_GONE)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is set: there is no option %s any more, %s; leave it out", origin,
                    opt->name, opt->help);
  void *field = (char *)config + opt->offset;
  if (opt->type == ZPS_OPT_STRING) {
    char *copy = strdup(text);
    if (!copy) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
    free(*(char **)field);
    *(char **)field = copy;
    return ZPS_OK;
  }
  if (parse(opt, text, field)) return ZPS_OK;
  char expected[200], meant[100];
  zps_opt_expected(opt, expected, sizeof expected);
  return zps_fail(error, ZPS_ERR_INVALID, "%s is '%.80s': must be %s%s", origin, text, expected,
                  meant_value(opt, text, meant, sizeof meant));
}

bool zps_config_h_is_help(const struct zps_opt_table *table) {
  const struct zps_opt *opt = table->opts;
  while (opt->name && opt->short_flag != 'h') opt++;
  return !opt->name;
}
