#include "worker/served/kinds.h"

#include "common/plan/schemes.h"

#define KIND(number, its_name, flags, paper)                        \
  [ZPS_PLAN_##number] = {.name = its_name,                          \
                         .ranges = (flags)&ZPS_SCHEME_RANGES,       \
                         .all_rows = (flags)&ZPS_SCHEME_ALL_VALUES, \
                         .blocks = (flags)&ZPS_SCHEME_BLOCKS},
#define NONE(number, name, flags, paper)

const struct zps_served_kind *zps_served_kind_find(const char *name) {
  static const struct zps_served_kind kinds[] = {ZPS_PLAN_SCHEME_LIST(KIND, NONE)};
  enum zps_plan_scheme scheme;
  if (!zps_plan_scheme_parse(name, &scheme)) return NULL;
  const unsigned flags = zps_plan_scheme_flags(scheme);
  return flags & ZPS_SCHEME_SERVED && !(flags & ZPS_SCHEME_NESTS) ? &kinds[scheme] : NULL;
}

enum zps_codec_policy zps_served_kind_codec(const struct zps_served_kind *served, enum zps_codec_policy asked) {
  if (served->all_rows) return ZPS_CODEC_AUTO;
  return served->ranges && asked == ZPS_CODEC_PAPER ? ZPS_CODEC_COO_ONLY : asked;
}
