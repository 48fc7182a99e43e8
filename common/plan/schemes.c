#include "common/plan/schemes.h"

#include <string.h>

#include "common/base/near.h"

#define NAME(number, name) name,
#define YES(number, name) true,
#define NO(number, name) false,
static const char *const names[] = {ZPS_PLAN_SCHEME_LIST(NAME, NAME) "auto"};
static const bool served[] = {ZPS_PLAN_SCHEME_LIST(YES, NO)};

const char *zps_plan_scheme_name(enum zps_plan_scheme scheme) {
  return (unsigned)scheme <= ZPS_PLAN_AUTO ? names[scheme] : "?";
}

bool zps_plan_scheme_parse(const char *name, enum zps_plan_scheme *scheme_p) {
  for (unsigned i = 0; i <= ZPS_PLAN_AUTO; i++) {
    if (strcmp(names[i], name) != 0) continue;
    *scheme_p = (enum zps_plan_scheme)i;
    return true;
  }
  return false;
}

const char *zps_plan_scheme_meant(const char *name, size_t len, char *text, size_t size) {
  struct zps_near near;
  zps_near_begin(&near, name, len);
  for (unsigned i = 0; i <= ZPS_PLAN_AUTO; i++) {
    if (strlen(names[i]) != len || memcmp(names[i], name, len) != 0) zps_near_try(&near, names[i]);
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

bool zps_plan_scheme_lossy(enum zps_plan_scheme scheme) {
  return scheme >= ZPS_PLAN_OKTOPK && scheme <= ZPS_PLAN_GAUSSIANK;
}

bool zps_plan_scheme_dense(enum zps_plan_scheme scheme) {
  return (scheme >= ZPS_PLAN_DENSE_PS && scheme <= ZPS_PLAN_BLUECONNECT) || scheme == ZPS_PLAN_DENSE_SPLIT;
}

bool zps_plan_scheme_alike(enum zps_plan_scheme scheme) {
  switch (scheme) {
    case ZPS_PLAN_BALANCED:
    case ZPS_PLAN_SPLIT_ALLGATHER:
    case ZPS_PLAN_DSAR:
    case ZPS_PLAN_AGSPARSE:
    case ZPS_PLAN_SPARSE_PS:
    case ZPS_PLAN_DENSE_PS:
    case ZPS_PLAN_DENSE_SPLIT:
    case ZPS_PLAN_BITMAP_SPLIT:
      return true;
    default:
      return false;
  }
}

bool zps_plan_scheme_finds_rows(enum zps_plan_scheme scheme) {
  return !zps_plan_scheme_dense(scheme) && scheme != ZPS_PLAN_OMNIREDUCE;
}

bool zps_plan_scheme_shows_union(enum zps_plan_scheme scheme) {
  return !zps_plan_scheme_dense(scheme) && !zps_plan_scheme_lossy(scheme) && scheme != ZPS_PLAN_DSAR &&
         scheme != ZPS_PLAN_OMNIREDUCE && scheme != ZPS_PLAN_BITMAP_SPLIT;
}

bool zps_plan_scheme_served(enum zps_plan_scheme scheme) {
  return (unsigned)scheme < ZPS_PLAN_SCHEMES && served[scheme];
}
