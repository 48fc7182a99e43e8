#include "server/coordinator/replay.h"

zps_err_t zps_replay_take(void *ctx, const char *text, size_t len) {
  struct zps_replay *replay = ctx;
  struct zps_error why;
  zps_json *record = NULL;
  zps_err_t err = zps_json_parse(text, len, &record, &why);
  if (!err && replay->n == 0)
    err = zps_record_header_read(record, replay->cluster, &replay->incarnation, &why);
  else if (!err)
    err = zps_record_read(replay->members, record, replay->now_ns, &why);
  zps_json_unref(record);
  if (err)
    return zps_fail(&replay->error, err, "the state cannot be taken over: record %llu: %s",
                    (unsigned long long)replay->n, why.text);
  replay->n++;
  return ZPS_OK;
}
