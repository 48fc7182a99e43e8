#include "common/control/tally_json.h"

#include <stdio.h>
#include <string.h>

#define COUNT_MAX (1ull << 53) /* what programs that take JSON's numbers for doubles still tell apart */

zps_json *zps_tally_write(zps_json *object, const struct zps_tally *tally) {
#define WRITE(name) object = zps_json_set_u64(object, #name, tally->name);
  ZPS_TALLY_COUNTERS(WRITE)
#undef WRITE
  object = zps_json_set_u64(object, "step", tally->step);
  return zps_json_set_str(object, "scheme", tally->scheme);
}

static zps_err_t read_count(const zps_json *object, const char *key, uint64_t *count_p, struct zps_error *error) {
  *count_p = 0;
  return zps_json_get(object, key) ? zps_json_get_u64(object, key, 0, COUNT_MAX, count_p, error) : ZPS_OK;
}

zps_err_t zps_tally_read(const zps_json *object, struct zps_tally *tally, struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  memset(tally, 0, sizeof *tally);
#define READ(name) \
  if (!err) err = read_count(object, #name, &tally->name, error);
  ZPS_TALLY_COUNTERS(READ)
#undef READ
  if (!err) tally->step = zps_json_opt_u64(object, "step", 0);
  const char *const scheme = zps_json_opt_str(object, "scheme", "");
  if (!err && strlen(scheme) > ZPS_TALLY_SCHEME_MAX)
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "member 'scheme' has %zu bytes; %u is the most", strlen(scheme),
                   ZPS_TALLY_SCHEME_MAX);
  if (!err) snprintf(tally->scheme, sizeof tally->scheme, "%s", scheme);
  return err;
}
