#include "worker/served/kinds.h"

#include <string.h>

static const struct zps_served_kind all[] = {
    {.name = "balanced"},
    {.name = "sparse-ps", .ranges = true},
    {.name = "dense-ps", .ranges = true, .all_rows = true},
    {.name = "omnireduce", .ranges = true, .blocks = true},
};

const struct zps_served_kind *zps_served_kind_find(const char *name) {
  for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (strcmp(all[i].name, name) == 0) return &all[i];
  }
  return NULL;
}

enum zps_codec_policy zps_served_kind_codec(const struct zps_served_kind *served, enum zps_codec_policy asked) {
  if (served->all_rows) return ZPS_CODEC_AUTO;
  return served->ranges && asked == ZPS_CODEC_PAPER ? ZPS_CODEC_COO_ONLY : asked;
}
