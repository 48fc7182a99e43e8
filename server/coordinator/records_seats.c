/* Records of the seats of elastic jobs. */
#include <stdlib.h>

#include "server/membership/elastic.h"
#include "server/coordinator/records_impl.h"

zps_json *zps_record_seats_write(const struct zps_member_note *note) {
  const struct zps_member_elastic *elastic = note->elastic;
  zps_json *moving = zps_json_array();
  for (uint32_t r = 0; r < elastic->last_world; r++)
    if (zps_member_seat_moves(&elastic->seats[r])) moving = zps_json_append_u64(moving, r);
  zps_json *record = zps_json_set_str(zps_json_object(), "name", elastic->name);
  record = zps_json_set_u64(record, "generation", elastic->number);
  record = zps_json_set_hex(record, "last_job", elastic->last_job);
  record = zps_json_set_u64(record, "world", elastic->last_world);
  if (zps_json_array_len(moving) > 0) return zps_json_set(record, "moving", moving);
  zps_json_unref(moving);
  return record;
}

zps_err_t zps_record_seats_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                struct zps_error *error) {
  struct zps_seats_image image = {.name = ""};
  uint32_t *moving = NULL;
  (void)now_ns;
  zps_err_t err = zps_control_get_name(record, "name", 1, ZPS_NAME_MAX, &image.name, error);
  if (!err) err = zps_control_get_u32(record, "generation", 0, UINT32_MAX, &image.number, error);
  if (!err) err = zps_json_get_hex(record, "last_job", &image.last_job, error);
  if (!err) err = zps_control_get_u32(record, "world", 1, ZPS_WORLD_MAX, &image.world, error);
  if (!err && zps_json_get(record, "moving"))
    err = zps_control_get_u32s(record, "moving", ZPS_WORLD_MAX, ZPS_WORLD_MAX, &moving, &image.n_moving, error);
  image.moving = moving;
  if (!err) err = zps_record_fits(zps_members_restore_seats(members, &image), error);
  free(moving);
  return err;
}
