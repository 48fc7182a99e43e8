/* Records of processes that an administrator has expelled. */
#include "server/coordinator/records_impl.h"

zps_json *zps_record_expelled_write(const struct zps_member_note *note) {
  const struct zps_member_expelled *one = note->expelled;
  zps_json *record = zps_json_set_hex(zps_json_object(), "job_id", one->job_id);
  record = zps_json_set_u64(record, "rank", one->rank);
  record = zps_control_set_opt_word(record, "secret", one->secret);
  return zps_json_set_str(record, "why", one->why);
}

zps_err_t zps_record_expelled_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                   struct zps_error *error) {
  struct zps_member_expelled one = {.job_id = 0};
  (void)now_ns;
  zps_err_t err = zps_json_get_hex(record, "job_id", &one.job_id, error);
  if (!err) err = zps_control_get_u32(record, "rank", 0, ZPS_WORLD_MAX - 1, &one.rank, error);
  if (!err) err = zps_control_opt_word(record, "secret", &one.secret, error);
  if (!err) err = zps_control_get_text(record, "why", 1, sizeof one.why - 1, one.why, error);
  if (!err) zps_members_restore_expelled(members, &one);
  return err;
}
