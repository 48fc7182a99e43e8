#include "common/plan/scheme_options.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/did_you_mean.h"
#include "common/base/text.h"
#include "common/plan/model.h"

enum kind { COUNT, NUMBER, BITS, SHARE, FLAG, WORD, PARTS, LEVELS };
enum place { WIRE, HERE };

struct row {
  const char *name;
  enum kind kind;
  enum place place;
  size_t at, size;
  uint64_t least, most, absent;
  const char *(*word)(unsigned number);
  unsigned schemes;
};

#define ROW(kind, place, member, name, least, most, absent, word, schemes, help) \
  {name,                                                                         \
   kind,                                                                         \
   place,                                                                        \
   offsetof(struct zps_scheme_options, member),                                  \
   sizeof((struct zps_scheme_options *)0)->member,                               \
   least,                                                                        \
   most,                                                                         \
   absent,                                                                       \
   word,                                                                         \
   schemes},
static const struct row rows[] = {ZPS_SCHEME_OPTION_LIST(ROW)};
enum { N_ROWS = sizeof rows / sizeof rows[0], ALL_SCHEMES = (1u << ZPS_PLAN_SCHEMES) - 1 };

struct levels {
  uint32_t n, factors[ZPS_SCHEME_LEVELS_MAX], algorithms[ZPS_SCHEME_LEVELS_MAX];
};

const char *zps_allgather_name(unsigned allgather) {
  static const char *const words[] = {"auto", "direct", "doubling"};
  return allgather < 3 ? words[allgather] : "?";
}

const char *zps_level_algorithm_name(unsigned algorithm) {
  return algorithm == ZPS_LEVEL_RING ? "ring" : zps_allgather_name(algorithm);
}

const char *zps_partitioner_word(unsigned partitioner) {
  return zps_partitioner_name((enum zps_partitioner)partitioner);
}

/* Of LEVELS the count, which both arrays follow. */
static void *at(const struct row *row, const struct zps_scheme_options *options) {
  return (char *)options + (row->kind == LEVELS ? offsetof(struct zps_scheme_options, n_levels) : row->at);
}

static size_t size_of(const struct row *row) {
  return row->kind == LEVELS ? sizeof(struct levels) : row->size;
}

static uint64_t number_of(const struct row *row, const struct zps_scheme_options *options) {
  const void *const from = at(row, options);
  return row->kind == SHARE    ? *(const double *)from > 0
         : row->kind == NUMBER ? *(const uint64_t *)from
                               : *(const uint32_t *)from;
}

/* ------------------------------------------------------------ values */

/* A whole number from 0 to `most`, all of the text. */
static bool read_number(const char *text, uint64_t most, uint64_t *number_p) {
  char *end;
  const unsigned long long number = strtoull(text, &end, 10);
  *number_p = number;
  return *text >= '0' && *text <= '9' && *end == '\0' && strlen(text) < 20 && number <= most;
}

/* A text of options is the same in every locale: in some a number has a comma, which ends an option here. */
struct spoken {
  locale_t own, before;
};
static struct spoken speak_c(void) {
  struct spoken spoken = {.own = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0)};
  if (spoken.own) spoken.before = uselocale(spoken.own);
  return spoken;
}
static void speak_as_before(const struct spoken *spoken) {
  if (!spoken->own) return;
  uselocale(spoken->before);
  freelocale(spoken->own);
}

static bool read_share(const char *text, double *share_p) {
  char *end;
  const struct spoken spoken = speak_c();
  *share_p = strtod(text, &end);
  speak_as_before(&spoken);
  return ((*text >= '0' && *text <= '9') || *text == '.') && *end == '\0' && *share_p >= 0 && *share_p <= 1;
}

/* "4x2", "4rx2d" */
static bool read_levels(const char *text, struct levels *levels) {
  *levels = (struct levels){0};
  while (levels->n < ZPS_SCHEME_LEVELS_MAX) {
    char *end;
    const unsigned long factor = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
    if (factor < 1 || factor > ZPS_SCHEME_FACTOR_MAX) return false;
    levels->factors[levels->n] = (uint32_t)factor;
    if (*end == 'r' || *end == 'd') levels->algorithms[levels->n] = *end++ == 'r' ? ZPS_LEVEL_RING : ZPS_LEVEL_DOUBLING;
    levels->n++;
    if (*end == '\0') return true;
    if (*end != 'x') return false;
    text = end + 1;
  }
  return false;
}

static bool read_word(const struct row *row, const char *text, uint32_t *number_p) {
  for (*number_p = (uint32_t)row->least; *number_p <= row->most; ++*number_p)
    if (strcmp(row->word(*number_p), text) == 0) return true;
  return false;
}

/* "auto, direct or doubling" */
static void say_words(const struct row *row, const char *typed, char *text, size_t size) {
  struct zps_near near;
  char meant[64];
  text[0] = '\0';
  zps_near_begin(&near, typed, strlen(typed));
  for (uint64_t i = row->least; i <= row->most; i++) {
    zps_near_try(&near, row->word((unsigned)i));
    zps_text_add(text, size, "%s%s", i == row->least ? "" : i == row->most ? " or " : ", ", row->word((unsigned)i));
  }
  zps_text_add(text, size, "%s", zps_near_say(&near, "; did you mean '", "'?", meant, sizeof meant));
}

static zps_err_t read_value(const struct row *row, const char *value, struct zps_scheme_options *options,
                            struct zps_error *error) {
  void *const to = at(row, options);
  uint64_t number = 0;
  char want[160];
  struct zps_error why;
  bool ok;
  switch (row->kind) {
    case SHARE:
      ok = read_share(value, to);
      snprintf(want, sizeof want, "a share of the rows, 0 to 1,");
      break;
    case WORD:
      ok = read_word(row, value, to);
      say_words(row, value, want, sizeof want);
      break;
    case PARTS:
      if (zps_without_parse(value, strlen(value), to, &why) == ZPS_OK) return ZPS_OK;
      return zps_fail(error, ZPS_ERR_INVALID, "%s: %s", row->name, why.text);
    case LEVELS:
      ok = read_levels(value, to);
      snprintf(want, sizeof want, "1 to %u numbers of ranks such as 4x2 or 4rx2d", ZPS_SCHEME_LEVELS_MAX);
      break;
    default:
      ok = read_number(value, row->most, &number) &&
           (row->kind != BITS || (number != 1 && (number & (number - 1)) == 0));
      snprintf(want, sizeof want, row->kind == BITS ? "0, 2, 4 or 8" : "0 to %" PRIu64, row->most);
      if (row->kind == NUMBER)
        *(uint64_t *)to = number;
      else
        *(uint32_t *)to = (uint32_t)number;
  }
  return ok ? ZPS_OK : zps_fail(error, ZPS_ERR_INVALID, "%s is '%.40s'; want %s", row->name, value, want);
}

/* The shortest text that reads back as the same number. */
static void add_share(char *text, double share) {
  char digits[32];
  const struct spoken spoken = speak_c();
  for (int precision = 6; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, share);
    if (strtod(digits, NULL) == share) break;
  }
  speak_as_before(&spoken);
  zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, "%s", digits);
}

static void add_levels(char *text, const struct levels *levels) {
  for (uint32_t i = 0; i < levels->n; i++)
    zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, "%s%" PRIu32 "%.1s", i ? "x" : "", levels->factors[i],
                 levels->algorithms[i] ? zps_level_algorithm_name(levels->algorithms[i]) : "");
}

char *zps_scheme_options_add(const struct zps_scheme_options *options, char *text) {
  for (const struct row *row = rows; row < rows + N_ROWS; row++) {
    const void *const from = at(row, options);
    char parts[ZPS_WITHOUT_TEXT_MAX + 1];
    if (number_of(row, options) == 0) continue;
    zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, "%c%s=", strchr(text, ':') ? ',' : ':', row->name);
    if (row->kind == SHARE)
      add_share(text, *(const double *)from);
    else if (row->kind == LEVELS)
      add_levels(text, from);
    else if (row->kind == PARTS)
      zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, "%s", zps_without_text(*(const uint32_t *)from, parts));
    else if (row->kind == WORD)
      zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, "%s", row->word(*(const uint32_t *)from));
    else
      zps_text_add(text, ZPS_SCHEME_TEXT_MAX + 1, "%" PRIu64, number_of(row, options));
  }
  return text;
}

/* ------------------------------------------------------------ sets of options */

static unsigned parts_of(unsigned schemes) {
  unsigned parts = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (schemes >> i & 1) parts |= zps_without_of((enum zps_plan_scheme)i);
  return parts;
}

void zps_scheme_options_keep(struct zps_scheme_options *options, unsigned schemes) {
  for (const struct row *row = rows; row < rows + N_ROWS; row++)
    if (!(row->schemes & schemes)) memset(at(row, options), 0, size_of(row));
  options->without &= parts_of(schemes);
}

void zps_scheme_options_share(struct zps_scheme_options *options) {
  for (const struct row *row = rows; row < rows + N_ROWS; row++)
    if (row->place == HERE || (row->absent && number_of(row, options) == row->absent))
      memset(at(row, options), 0, size_of(row));
}

bool zps_scheme_options_same(const struct zps_scheme_options *a, const struct zps_scheme_options *b) {
  bool same = true;
  for (const struct row *row = rows; row < rows + N_ROWS; row++)
    if (row->place == WIRE) same = same && memcmp(at(row, a), at(row, b), size_of(row)) == 0;
  return same;
}

/* ------------------------------------------------------------ texts */

/* The schemes that a word of the text stands for. */
static unsigned schemes_of(const char *word) {
  enum zps_plan_scheme scheme;
  if (strcmp(word, "any") == 0 || strcmp(word, "ranks") == 0) return 0;
  if (!zps_plan_scheme_parse(word, &scheme)) return ALL_SCHEMES; /* refused later on, by its name */
  return scheme == ZPS_PLAN_AUTO ? 0 : 1u << scheme;
}

static void list_names(unsigned schemes, char *text, size_t size) {
  text[0] = '\0';
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (schemes >> i & 1)
      zps_text_add(text, size, "%s%s", *text ? ", " : "", zps_plan_scheme_name((enum zps_plan_scheme)i));
}

static zps_err_t refuse(const char *name, unsigned schemes, const char *scheme, struct zps_error *error) {
  struct zps_near near;
  char meant[64], there[256] = "";
  zps_near_begin(&near, name, strlen(name));
  for (const struct row *row = rows; row < rows + N_ROWS; row++) {
    if (!(row->schemes & schemes)) continue;
    zps_near_try(&near, row->name);
    zps_text_add(there, sizeof there, " %s", row->name);
  }
  return zps_fail(error, ZPS_ERR_INVALID, "scheme %s has no option '%.40s'; it has:%s%s", scheme, name,
                  *there ? there : " none", zps_near_say(&near, "; did you mean '", "'?", meant, sizeof meant));
}

static zps_err_t read_option(char *option, unsigned schemes, unsigned *seen, struct zps_scheme_text *scheme,
                             struct zps_error *error) {
  char *value = strchr(option, '=');
  *value++ = '\0';
  unsigned i = 0;
  while (i < N_ROWS && strcmp(rows[i].name, option) != 0) i++;
  if (i == N_ROWS) return refuse(option, schemes, scheme->scheme, error);
  if (!(rows[i].schemes & schemes)) {
    char names[256];
    list_names(rows[i].schemes, names, sizeof names);
    return zps_fail(error, ZPS_ERR_INVALID, "%s is for %s, not for scheme %s", option, names, scheme->scheme);
  }
  if (*seen >> i & 1)
    return zps_fail(error, ZPS_ERR_INVALID, "scheme %s: %s is given twice; leave one out", scheme->scheme, option);
  *seen |= 1u << i;
  const zps_err_t err = read_value(&rows[i], value, &scheme->options, error);
  const unsigned parts = parts_of(schemes);
  char text[ZPS_WITHOUT_TEXT_MAX + 1];
  if (err != ZPS_OK || !(scheme->options.without & ~parts)) return err;
  return zps_fail(error, ZPS_ERR_INVALID, "without is '%.80s', but scheme %s can do without no more than %s", value,
                  scheme->scheme, zps_without_text(parts, text));
}

/* The names of the text, without its options. Returns the schemes that may run. */
static unsigned read_names(char *name, char *items, char *scheme) {
  unsigned named = 0;
  bool any = false;
  snprintf(scheme, ZPS_SCHEME_TEXT_MAX + 1, "%s", name);
  for (char *item; (item = strsep(&items, ","));) {
    if (strchr(item, '=')) continue;
    zps_text_add(scheme, ZPS_SCHEME_TEXT_MAX + 1, "%c%s", any ? ',' : ':', item);
    named |= schemes_of(item);
    any = true;
  }
  if (strcmp(name, zps_plan_scheme_name(ZPS_PLAN_AUTO)) == 0) return named ? named : zps_plan_lossless();
  const unsigned outer = schemes_of(name);
  return outer | named | (outer == ZPS_SCHEMES_ONE(HIERARCHICAL) && !any ? ZPS_SCHEMES_ONE(BALANCED) : 0);
}

zps_err_t zps_scheme_text_parse(const char *text, const char *otherwise, struct zps_scheme_text *scheme,
                                struct zps_error *error) {
  char whole[ZPS_SCHEME_TEXT_MAX + 1], copy[ZPS_SCHEME_TEXT_MAX + 1];
  const bool adds = text[0] == ':';
  const char *const joint = !adds ? "" : strchr(otherwise, ':') ? "," : ":";
  *scheme = (struct zps_scheme_text){.scheme = ""};
  if (snprintf(whole, sizeof whole, "%s%s%s", adds ? otherwise : "", joint, text + adds) >= (int)sizeof whole)
    return zps_fail(error, ZPS_ERR_INVALID, "the text of the scheme is longer than %u bytes: '%.40s...'",
                    ZPS_SCHEME_TEXT_MAX, text);
  strcpy(copy, whole);
  char *items = whole, *const name = strsep(&items, ":");
  char *const options = items ? copy + (items - whole) : NULL;
  const unsigned schemes = read_names(name, items, scheme->scheme);
  unsigned seen = 0;
  zps_err_t err = ZPS_OK;
  for (char *rest = options, *item; err == ZPS_OK && (item = strsep(&rest, ","));)
    if (strchr(item, '=')) err = read_option(item, schemes, &seen, scheme, error);
  return err;
}
