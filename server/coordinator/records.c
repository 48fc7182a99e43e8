#include "server/coordinator/records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/records_impl.h"

#define FORM "zenps coordinator"

/* ------------------------------------------------------------ header */

zps_json *zps_record_header_write(const char *cluster, uint64_t incarnation) {
  zps_json *record = zps_json_set_str(zps_json_object(), "what", FORM);
  record = zps_json_set_u64(record, "version", ZPS_RECORDS_VERSION);
  record = zps_json_set_str(record, "cluster", cluster);
  return zps_json_set_hex(record, "incarnation", incarnation);
}

zps_err_t zps_record_header_read(const zps_json *record, const char *cluster, uint64_t *incarnation_p,
                                 struct zps_error *error) {
  const char *theirs = "";
  uint64_t version = 0;
  if (strcmp(zps_json_opt_str(record, "what", ""), FORM) != 0)
    return zps_fail(error, ZPS_ERR_VERSION, "it is no state of a coordinator of zenps's");
  zps_err_t err = zps_json_get_u64(record, "version", 0, UINT32_MAX, &version, error);
  if (!err && version != ZPS_RECORDS_VERSION)
    err = zps_fail(
        error, ZPS_ERR_VERSION,
        "it is of version %llu, and this program's of version %u: run the release that wrote it, or give a new folder",
        (unsigned long long)version, ZPS_RECORDS_VERSION);
  if (!err) err = zps_json_get_str(record, "cluster", &theirs, error);
  if (!err && cluster && strcmp(theirs, cluster) != 0)
    err = zps_fail(error, ZPS_ERR_REFUSED,
                   "it is of cluster '%.100s', and this coordinator of cluster '%.100s' (coordinator.cluster)", theirs,
                   cluster);
  return err ? err : zps_json_get_hex(record, "incarnation", incarnation_p, error);
}

/* ------------------------------------------------------------ members that several records have */

zps_json *zps_record_set_error(zps_json *record, const struct zps_error *why) {
  if (!why->code) return record;
  return zps_json_set_str(zps_json_set_str(record, "code", zps_err_name(why->code)), "text", why->text);
}

void zps_record_get_error(const zps_json *record, struct zps_error *why) {
  const char *const code = zps_json_opt_str(record, "code", NULL);
  why->code = ZPS_OK;
  if (code) zps_fail(why, zps_err_from_name(code), "%s", zps_json_opt_str(record, "text", ""));
}

zps_err_t zps_record_fits(zps_err_t err, struct zps_error *error) {
  return err ? zps_fail(error, err, err == ZPS_ERR_NOMEM ? "no memory for it" : "it does not fit those before it")
             : ZPS_OK;
}

/* ------------------------------------------------------------ counters and servers */

static const struct zps_field counters[] = {
    {"next_server", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_note, next_server)},
    {"epoch", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_note, epoch)},
};
static const struct zps_fields counters_fields = {.name = "counters", ZPS_FIELDS_OF(struct zps_member_note, counters)};

static zps_json *counters_write(const struct zps_member_note *note) {
  return zps_fields_write(&counters_fields, note);
}

static zps_err_t counters_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                               struct zps_error *error) {
  struct zps_member_note note;
  (void)now_ns;
  const zps_err_t err = zps_fields_read(&counters_fields, record, &note, error);
  if (!err) zps_members_restore_counters(members, note.next_server, note.epoch);
  return err;
}

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

static zps_json *server_write(const struct zps_member_note *note) {
  return zps_fields_write(&server_fields, note->server);
}

static zps_err_t server_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                             struct zps_error *error) {
  struct zps_member_server read;
  (void)now_ns;
  const zps_err_t err = zps_fields_read(&server_fields, record, &read, error);
  return err ? err : zps_record_fits(zps_members_restore_server(members, &read), error);
}

static zps_json *server_gone_write(const struct zps_member_note *note) {
  return zps_json_set_u64(zps_json_object(), "server", note->server->index);
}

static zps_err_t server_gone_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                  struct zps_error *error) {
  uint32_t index = 0;
  (void)now_ns;
  const zps_err_t err = zps_control_get_u32(record, "server", 0, UINT32_MAX, &index, error);
  return err ? err : zps_record_fits(zps_members_restore_server_gone(members, index), error);
}

/* ------------------------------------------------------------ all of them */

static const struct {
  const char *what;
  zps_json *(*write)(const struct zps_member_note *note);
  zps_err_t (*read)(struct zps_members *members, const zps_json *record, uint64_t now_ns, struct zps_error *error);
} records[] = {
    [ZPS_NOTE_COUNTERS] = {"counters", counters_write, counters_read},
    [ZPS_NOTE_SERVER] = {"server", server_write, server_read},
    [ZPS_NOTE_SERVER_GONE] = {"server.gone", server_gone_write, server_gone_read},
    [ZPS_NOTE_JOB] = {"job", zps_record_job_write, zps_record_job_read},
    [ZPS_NOTE_JOB_FAILED] = {"job.failed", zps_record_failed_write, zps_record_failed_read},
    [ZPS_NOTE_JOB_GONE] = {"job.gone", zps_record_job_gone_write, zps_record_job_gone_read},
    [ZPS_NOTE_RANK] = {"rank", zps_record_rank_write, zps_record_rank_read},
    [ZPS_NOTE_TENSOR] = {"tensor", zps_record_tensor_write, zps_record_tensor_read},
    [ZPS_NOTE_TENSOR_STATE] = {"tensor.state", zps_record_tensor_state_write, zps_record_tensor_state_read},
    [ZPS_NOTE_TENSOR_GONE] = {"tensor.gone", zps_record_tensor_gone_write, zps_record_tensor_gone_read},
    [ZPS_NOTE_GROUP] = {"group", zps_record_group_write, zps_record_group_read},
    [ZPS_NOTE_SEAT] = {"seat", zps_record_seat_write, zps_record_seat_read},
    [ZPS_NOTE_SEATS] = {"seats", zps_record_seats_write, zps_record_seats_read},
    [ZPS_NOTE_EXPELLED] = {"expelled", zps_record_expelled_write, zps_record_expelled_read},
};

zps_json *zps_record_write(const struct zps_member_note *note) {
  return zps_json_set_str(records[note->type].write(note), "what", records[note->type].what);
}

zps_err_t zps_record_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                          struct zps_error *error) {
  const char *const what = zps_json_opt_str(record, "what", "");
  for (unsigned i = 0; i < sizeof records / sizeof records[0]; i++)
    if (strcmp(records[i].what, what) == 0) return records[i].read(members, record, now_ns, error);
  if (strcmp(what, "run") == 0) return ZPS_OK; /* schemes of steps, which coordinators decided on in former days */
  return zps_fail(error, ZPS_ERR_PROTOCOL, "there is no record of '%.40s'", what);
}
