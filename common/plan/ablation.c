#include "common/plan/ablation.h"

#include <string.h>

#include "common/base/did_you_mean.h"
#include "common/base/text.h"

static const struct {
  const char *name;
  enum zps_plan_scheme scheme;
} parts[] = {
#define PART(part, bit, name, scheme) [bit] = {name, ZPS_PLAN_##scheme},
    ZPS_PLAN_PART_LIST(PART)
#undef PART
};

enum { N_PARTS = sizeof parts / sizeof parts[0] };

const char *zps_without_name(unsigned i) {
  return i < N_PARTS ? parts[i].name : NULL;
}

unsigned zps_without_of(enum zps_plan_scheme scheme) {
  unsigned of = 0;
  for (unsigned i = 0; i < N_PARTS; i++) of |= parts[i].scheme == scheme ? 1u << i : 0;
  return of;
}

static unsigned find(const char *name, size_t len) {
  unsigned i = 0;
  while (i < N_PARTS && (strlen(parts[i].name) != len || memcmp(parts[i].name, name, len) != 0)) i++;
  return i;
}

zps_err_t zps_without_parse(const char *text, size_t len, unsigned *without_p, struct zps_error *error) {
  unsigned without = 0;
  for (size_t at = 0, end; at < len; at = end + 1) {
    for (end = at; end < len && text[end] != '+';) end++;
    const unsigned i = find(text + at, end - at);
    if (i == N_PARTS) {
      struct zps_near near;
      char meant[64];
      zps_near_begin(&near, text + at, end - at);
      for (unsigned j = 0; j < N_PARTS; j++) zps_near_try(&near, parts[j].name);
      return zps_fail(error, ZPS_ERR_INVALID,
                      "no scheme has a part '%.*s' that it can do without; there are:" ZPS_PLAN_PARTS_TEXT "%s",
                      (int)(end - at < 40 ? end - at : 40), text + at,
                      zps_near_say(&near, "; did you mean '", "'?", meant, sizeof meant));
    }
    without |= 1u << i;
  }
  *without_p = without;
  return ZPS_OK;
}

const char *zps_without_text(unsigned without, char *text) {
  text[0] = '\0';
  for (unsigned i = 0; i < N_PARTS; i++)
    if (without >> i & 1) zps_text_add(text, ZPS_WITHOUT_TEXT_MAX + 1, "%s%s", text[0] ? "+" : "", parts[i].name);
  return text;
}
