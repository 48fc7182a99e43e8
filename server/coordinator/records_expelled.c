/* Records of processes that an administrator has expelled. */
#include "server/coordinator/records_impl.h"

static const struct zps_field expelled[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_member_expelled, job_id)},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_expelled, rank), .max = ZPS_WORLD_MAX - 1},
    {"secret", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_member_expelled, secret), .optional = true},
    {"why", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_member_expelled, why), .min = 1},
};
static const struct zps_fields fields = {.name = "expelled", ZPS_FIELDS_OF(struct zps_member_expelled, expelled)};

zps_json *zps_record_expelled_write(const struct zps_member_note *note) {
  return zps_fields_write(&fields, note->expelled);
}

zps_err_t zps_record_expelled_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                   struct zps_error *error) {
  struct zps_member_expelled one;
  (void)now_ns;
  const zps_err_t err = zps_fields_read(&fields, record, &one, error);
  if (!err) zps_members_restore_expelled(members, &one);
  return err;
}
