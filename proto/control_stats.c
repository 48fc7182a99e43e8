#include "proto/control_stats.h"

#include <string.h>

#define COUNT_MAX (1ull << 53) /* programs that take JSON's numbers for doubles still tell counts below it apart */

zps_json *zps_control_tally_write(zps_json *object, const struct zps_tally *tally) {
#define WRITE(name) object = zps_json_set_u64(object, #name, tally->name);
  ZPS_TALLY_COUNTERS(WRITE)
#undef WRITE
  object = zps_json_set_u64(object, "step", tally->step);
  return zps_json_set_str(object, "scheme", tally->scheme);
}

static zps_err_t read_count(const zps_json *object, const char *key, uint64_t *count_p, struct zps_error *error) {
  return zps_json_get(object, key) ? zps_json_get_u64(object, key, 0, COUNT_MAX, count_p, error) : ZPS_OK;
}

zps_err_t zps_control_tally_read(const zps_json *object, struct zps_tally *tally, struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  memset(tally, 0, sizeof *tally);
#define READ(name) \
  if (!err) err = read_count(object, #name, &tally->name, error);
  ZPS_TALLY_COUNTERS(READ)
#undef READ
  if (err) return err;
  if (zps_json_get(object, "step")) err = zps_json_get_u64(object, "step", 0, UINT64_MAX, &tally->step, error);
  if (err || !zps_json_get(object, "scheme")) return err;
  return zps_control_get_text(object, "scheme", 0, ZPS_TALLY_SCHEME_MAX, tally->scheme, error);
}

zps_json *zps_control_mishaps_write(zps_json *object, const struct zps_mishaps *mishaps) {
#define WRITE(name) object = zps_json_set_u64(object, #name, mishaps->name);
  ZPS_MISHAPS(WRITE)
#undef WRITE
  return object;
}

zps_json *zps_control_news_append(zps_json *rows, const struct zps_tensor_news *news) {
  zps_json *row = zps_json_set_u64(zps_json_object(), "tensor", news->tensor);
  row = zps_json_set_u64(row, "done", news->done);
  return zps_json_append(rows, zps_control_tally_write(row, &news->growth));
}

zps_err_t zps_control_news_read(const zps_json *row, struct zps_tensor_news *news, struct zps_error *error) {
  zps_err_t err = zps_control_get_u32(row, "tensor", 0, UINT32_MAX, &news->tensor, error);
  if (!err) err = zps_json_get_u64(row, "done", 0, UINT64_MAX, &news->done, error);
  return err ? err : zps_control_tally_read(row, &news->growth, error);
}

zps_json *zps_control_stats_write(const struct zps_rank_news *news, zps_json *rows) {
  zps_json *params = zps_json_set(zps_control_job_id_write(news->job_id), "tensors", rows);
  if (news->kept_bytes) params = zps_json_set_u64(params, "kept_bytes", news->kept_bytes);
#define WRITE(name) \
  if (news->mishaps.name) params = zps_json_set_u64(params, #name, news->mishaps.name);
  ZPS_MISHAPS(WRITE)
#undef WRITE
  return params;
}

/* What is sent where there is any. */
static zps_err_t read_some(const zps_json *object, const char *key, uint64_t *count_p, struct zps_error *error) {
  return zps_json_get(object, key) ? zps_json_get_u64(object, key, 1, COUNT_MAX, count_p, error) : ZPS_OK;
}

zps_err_t zps_control_stats_read(const zps_json *params, struct zps_rank_news *news, struct zps_error *error) {
  *news = (struct zps_rank_news){.rows = NULL};
  zps_err_t err = zps_control_job_id_read(params, &news->job_id, error);
  if (!err) err = read_some(params, "kept_bytes", &news->kept_bytes, error);
#define READ(name) \
  if (!err) err = read_some(params, #name, &news->mishaps.name, error);
  ZPS_MISHAPS(READ)
#undef READ
  return err ? err : zps_json_get_array(params, "tensors", &news->rows, error);
}
