#include "server/coordinator/records.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "server/coordinator/records_impl.h"

#define FORM "zenps coordinator"

/* ------------------------------------------------------------ header */

zps_json *zps_record_header_write(const char *cluster, uint64_t incarnation) {
  zps_json *record = zps_json_set_str(zps_json_object(), "what", FORM);
  record = zps_json_set_u64(record, "version", ZPS_RECORDS_VERSION);
  record = zps_json_set_str(record, "cluster", cluster);
  return zps_json_set_hex(record, "incarnation", incarnation);
}

zps_err_t zps_record_header_read(const zps_json *record, const char *cluster, struct zps_record_header *header,
                                 struct zps_error *error) {
  const char *theirs = "";
  uint64_t version = 0;
  if (strcmp(zps_json_opt_str(record, "what", ""), FORM) != 0)
    return zps_fail(error, ZPS_ERR_VERSION, "it is no state of a coordinator of zenps's");
  zps_err_t err = zps_json_get_u64(record, "version", 0, UINT32_MAX, &version, error);
  if (!err && (version < ZPS_RECORDS_VERSION_OLDEST || version > ZPS_RECORDS_VERSION))
    err = zps_fail(error, ZPS_ERR_VERSION,
                   "it is of version %llu, and this program reads versions %u to %u: run the release that wrote it, or "
                   "give a new folder",
                   (unsigned long long)version, ZPS_RECORDS_VERSION_OLDEST, ZPS_RECORDS_VERSION);
  header->version = (uint32_t)version;
  if (!err) err = zps_json_get_str(record, "cluster", &theirs, error);
  if (!err && cluster && strcmp(theirs, cluster) != 0)
    err = zps_fail(error, ZPS_ERR_REFUSED, "it is of cluster '%.100s', and this coordinator of cluster '%.100s' (%s)",
                   theirs, cluster, zps_config_label("coordinator.cluster"));
  return err ? err : zps_json_get_hex(record, "incarnation", &header->incarnation, error);
}

/* ------------------------------------------------------------ counters, servers, expulsions */

static const struct zps_field counters[] = {
    {"next_server", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_note, next_server)},
    {"epoch", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_note, epoch)},
};
static const struct zps_fields counters_fields = {.name = "counters", ZPS_FIELDS_OF(struct zps_member_note, counters)};

static const struct zps_field server[] = {
    {"server", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_server, index), .max = ZPS_NO_SERVER - 1},
    {"name", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_member_server, name), .min = 1},
    {"host", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_member_server, host), .min = 1},
    {"pid", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_server, pid)},
    {"draining", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_member_server, draining)},
    {"stops", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_member_server, stops), .optional = true},
    {"secret", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_member_server, secret), .optional = true},
    {"fabric", ZPS_FIELD_OBJECT, ZPS_FIELD_AT(struct zps_member_server, fabric), .part = &zps_control_fabric},
};
static const struct zps_fields server_fields = {.name = "server", ZPS_FIELDS_OF(struct zps_member_server, server)};

static const struct zps_field expelled[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_member_expelled, job_id)},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_expelled, rank), .max = ZPS_WORLD_MAX - 1},
    {"secret", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_member_expelled, secret), .optional = true},
    {"why", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_member_expelled, why), .min = 1},
};
static const struct zps_fields expelled_fields = {.name = "expelled",
                                                  ZPS_FIELDS_OF(struct zps_member_expelled, expelled)};

/* ------------------------------------------------------------ all of them */

static const struct zps_fields *const records[] = {
    [ZPS_NOTE_COUNTERS] = &counters_fields,
    [ZPS_NOTE_SERVER] = &server_fields,
    [ZPS_NOTE_SERVER_GONE] = &zps_record_server_gone,
    [ZPS_NOTE_JOB] = &zps_record_job,
    [ZPS_NOTE_JOB_FAILED] = &zps_record_job_failed,
    [ZPS_NOTE_JOB_GONE] = &zps_record_job_gone,
    [ZPS_NOTE_JOB_CAUSE] = &zps_record_job_cause,
    [ZPS_NOTE_JOB_ENDED] = &zps_record_job_ended,
    [ZPS_NOTE_RANK] = &zps_record_rank,
    [ZPS_NOTE_TENSOR] = &zps_record_tensor,
    [ZPS_NOTE_TENSOR_STATE] = &zps_record_tensor_state,
    [ZPS_NOTE_TENSOR_GONE] = &zps_record_tensor_gone,
    [ZPS_NOTE_GROUP] = &zps_record_group,
    [ZPS_NOTE_SEAT] = &zps_record_seat,
    [ZPS_NOTE_SEATS] = &zps_record_seats,
    [ZPS_NOTE_EXPELLED] = &expelled_fields,
};
enum { N_RECORDS = sizeof records / sizeof records[0] };

/* Returns the struct that the record's table writes: the note's own, or `room`, zeroed by the caller and filled here.
 * The struct may point to *list_p, for the caller to free(). NULL: no memory. */
static const void *image_of(const struct zps_member_note *note, void *room, void **list_p) {
  switch (note->type) {
    case ZPS_NOTE_COUNTERS:
      return note;
    case ZPS_NOTE_SERVER:
      return note->server;
    case ZPS_NOTE_EXPELLED:
      return note->expelled;
    case ZPS_NOTE_JOB_ENDED:
      return note->ended;
    case ZPS_NOTE_JOB:
      return zps_record_job_of(note->job, room, list_p);
    case ZPS_NOTE_TENSOR:
      return zps_record_tensor_of(note->tensor, room);
    case ZPS_NOTE_GROUP:
      return zps_record_group_of(note, room, list_p);
    case ZPS_NOTE_SEATS:
      return zps_record_seats_of(note->elastic, room, list_p);
    default:
      return zps_record_change_of(note, room);
  }
}

static zps_err_t restore(struct zps_members *members, enum zps_note_type type, void *read, uint64_t now_ns) {
  const struct zps_member_note *const note = read;
  switch (type) {
    case ZPS_NOTE_COUNTERS:
      zps_members_restore_counters(members, note->next_server, note->epoch);
      return ZPS_OK;
    case ZPS_NOTE_SERVER:
      return zps_members_restore_server(members, read);
    case ZPS_NOTE_EXPELLED:
      zps_members_restore_expelled(members, read);
      return ZPS_OK;
    case ZPS_NOTE_JOB_ENDED:
      zps_members_restore_ended(members, read);
      return ZPS_OK;
    case ZPS_NOTE_JOB:
      return zps_record_job_restore(members, read, now_ns);
    case ZPS_NOTE_TENSOR:
      return zps_record_tensor_restore(members, read, now_ns);
    case ZPS_NOTE_GROUP:
      return zps_record_group_restore(members, read);
    case ZPS_NOTE_SEATS:
      return zps_members_restore_seats(members, read);
    default:
      return zps_record_change_restore(members, type, read, now_ns);
  }
}

zps_json *zps_record_write(const struct zps_member_note *note) {
  const struct zps_fields *const fields = records[note->type];
  void *const room = calloc(1, fields->size);
  void *list = NULL;
  const void *const image = room ? image_of(note, room, &list) : NULL;
  zps_json *const record = image ? zps_fields_write(fields, image) : NULL;
  free(list);
  free(room);
  return zps_json_set_str(record, "what", fields->name);
}

static zps_err_t read_as(struct zps_members *members, enum zps_note_type type, const zps_json *record, uint64_t now_ns,
                         struct zps_error *error) {
  const struct zps_fields *const fields = records[type];
  void *const read = malloc(fields->size);
  if (!read) return zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory for it", fields->name);
  zps_err_t err = zps_fields_read(fields, record, read, error);
  if (!err) {
    err = restore(members, type, read, now_ns);
    zps_fields_fini(fields, read);
    if (err)
      zps_fail(error, err, "%s: %s", fields->name,
               err == ZPS_ERR_NOMEM ? "no memory for it" : "it does not fit the records before it");
  }
  free(read);
  return err;
}

zps_err_t zps_record_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                          struct zps_error *error) {
  const char *const what = zps_json_opt_str(record, "what", "");
  for (unsigned i = 0; i < N_RECORDS; i++)
    if (strcmp(records[i]->name, what) == 0) return read_as(members, (enum zps_note_type)i, record, now_ns, error);
  if (strcmp(what, "run") == 0) return ZPS_OK; /* Older coordinators recorded the schemes of steps. */
  return zps_fail(error, ZPS_ERR_PROTOCOL, "there is no record of '%.40s'", what);
}

zps_err_t zps_replay_take(void *ctx, const char *text, size_t len) {
  struct zps_replay *replay = ctx;
  struct zps_error why;
  zps_json *record = NULL;
  zps_err_t err = zps_json_parse(text, len, &record, &why);
  if (!err && replay->n == 0)
    err = zps_record_header_read(record, replay->cluster, &replay->header, &why);
  else if (!err)
    err = zps_record_read(replay->members, record, replay->now_ns, &why);
  zps_json_unref(record);
  if (err)
    return zps_fail(&replay->error, err, "the state cannot be taken over: record %llu: %s",
                    (unsigned long long)replay->n, why.text);
  replay->n++;
  return ZPS_OK;
}
