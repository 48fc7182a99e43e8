#include "common/plan/schemes.h"

#include <string.h>

#include "common/base/did_you_mean.h"

#define NAME(number, name, flags, paper) name,
#define FLAGS(number, name, flags, paper) ZPS_PLAN_FLAGS_##number,
#define PAPER(number, name, flags, paper) paper,
const char zps_plan_scheme_names[ZPS_PLAN_SCHEMES + 1][ZPS_PLAN_NAME_SIZE] = {ZPS_PLAN_SCHEME_LIST(NAME, NAME) "auto"};
static const unsigned flags[] = {ZPS_PLAN_SCHEME_LIST(FLAGS, FLAGS)};
static const char *const papers[] = {ZPS_PLAN_SCHEME_LIST(PAPER, PAPER)};

const char *zps_plan_scheme_name(enum zps_plan_scheme scheme) {
  return (unsigned)scheme <= ZPS_PLAN_AUTO ? zps_plan_scheme_names[scheme] : "?";
}

bool zps_plan_scheme_parse(const char *name, enum zps_plan_scheme *scheme_p) {
  for (unsigned i = 0; i <= ZPS_PLAN_AUTO; i++) {
    if (strcmp(zps_plan_scheme_names[i], name) != 0) continue;
    *scheme_p = (enum zps_plan_scheme)i;
    return true;
  }
  return false;
}

const char *zps_plan_scheme_meant(const char *name, size_t len, char *text, size_t size) {
  struct zps_near near;
  zps_near_begin(&near, name, len);
  for (unsigned i = 0; i <= ZPS_PLAN_AUTO; i++) {
    if (strlen(zps_plan_scheme_names[i]) != len || memcmp(zps_plan_scheme_names[i], name, len) != 0)
      zps_near_try(&near, zps_plan_scheme_names[i]);
  }
  return zps_near_say(&near, "; did you mean '", "'?", text, size);
}

zps_err_t zps_plan_schemes_parse(const char *text, size_t len, unsigned *schemes_p, struct zps_error *error) {
  unsigned schemes = 0;
  for (size_t at = 0, end; at < len; at = end + 1) {
    for (end = at; end < len && text[end] != ',';) end++;
    char name[32] = "", meant[64];
    enum zps_plan_scheme scheme = ZPS_PLAN_AUTO;
    if (end - at < sizeof name) memcpy(name, text + at, end - at);
    if (!zps_plan_scheme_parse(name, &scheme) || scheme == ZPS_PLAN_AUTO)
      return zps_fail(error, ZPS_ERR_INVALID, "there is no scheme '%.*s'; there are:" ZPS_PLAN_ALL_TEXT "%s",
                      (int)(end - at < 40 ? end - at : 40), text + at,
                      zps_plan_scheme_meant(text + at, end - at, meant, sizeof meant));
    schemes |= 1u << scheme;
  }
  if (schemes == 0) return zps_fail(error, ZPS_ERR_INVALID, "a list of schemes that names none");
  *schemes_p = schemes;
  return ZPS_OK;
}

unsigned zps_plan_scheme_flags(enum zps_plan_scheme scheme) {
  return (unsigned)scheme < ZPS_PLAN_SCHEMES ? flags[scheme] : 0;
}

const char *zps_plan_scheme_paper(enum zps_plan_scheme scheme) {
  return (unsigned)scheme < ZPS_PLAN_SCHEMES ? papers[scheme] : "?";
}
