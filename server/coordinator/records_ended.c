/* Records of jobs that have ended. */
#include <string.h>

#include "server/coordinator/records_impl.h"

void zps_record_origin_read(struct zps_origin *origin) {
  static const struct zps_origin unknown;
  origin->is_known = memcmp(origin->bytes, unknown.bytes, sizeof unknown.bytes) != 0;
}

static zps_err_t check(void *read, struct zps_error *error) {
  struct zps_history_record *const ended = read;
  (void)error;
  zps_record_origin_read(&ended->origin);
  zps_record_origin_read(&ended->tenant);
  return ZPS_OK;
}

#define AT(member) ZPS_FIELD_AT(struct zps_history_record, member)
static const struct zps_field fields[] = {
    {"job_id", ZPS_FIELD_HEX, AT(job_id)},
    {"name", ZPS_FIELD_TEXT, AT(name), .min = 1},
    {"origin", ZPS_FIELD_SECRET, AT(origin.bytes), .optional = true},
    {"tenant", ZPS_FIELD_SECRET, AT(tenant.bytes), .optional = true},
    {"world", ZPS_FIELD_NUMBER, AT(world), .min = 1, .max = ZPS_WORLD_MAX},
    {"left", ZPS_FIELD_NUMBER, AT(n_left), .max = ZPS_WORLD_MAX},
    {"lost", ZPS_FIELD_NUMBER, AT(n_lost), .max = ZPS_WORLD_MAX},
    {"servers", ZPS_FIELD_NUMBER, AT(n_servers), .max = ZPS_SERVERS_MAX},
    {"places", ZPS_FIELD_NUMBER, AT(n_places), .max = ZPS_SERVERS_MAX},
    {"servers_lost", ZPS_FIELD_NUMBER, AT(n_servers_lost), .max = ZPS_SERVERS_MAX},
    {"lost_servers", ZPS_FIELD_TEXT, AT(lost_servers), .optional = true},
    {"tensors", ZPS_FIELD_NUMBER, AT(n_tensors)},
    {"epoch", ZPS_FIELD_NUMBER, AT(epoch)},
    {"started_ms", ZPS_FIELD_NUMBER, AT(started_ms)},
    {"ended_ms", ZPS_FIELD_NUMBER, AT(ended_ms)},
    {"ran_ms", ZPS_FIELD_NUMBER, AT(ran_ms)},
    {"rounds", ZPS_FIELD_NUMBER, AT(rounds)},
    {"bytes_out", ZPS_FIELD_NUMBER, AT(bytes_out)},
    {"bytes_in", ZPS_FIELD_NUMBER, AT(bytes_in)},
    {.type = ZPS_FIELD_PART, AT(cause), .part = &zps_record_why, .optional = true},
};
#undef AT
const struct zps_fields zps_record_job_ended = {
    .name = "job.ended", ZPS_FIELDS_OF(struct zps_history_record, fields), .check = check};
