/* Records of changes, which a compacted journal has not. */
#include <string.h>

#include "server/coordinator/records_impl.h"

static const struct zps_field why[] = {
    {"code", ZPS_FIELD_CODE, ZPS_FIELD_AT(struct zps_error, code)},
    {"text", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_error, text), .optional = true, .always = true},
};
const struct zps_fields zps_record_why = {ZPS_FIELDS_OF(struct zps_error, why)};

static const struct zps_field cause[] = {
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_cause, rank), .max = ZPS_WORLD_MAX - 1},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_member_cause, error), .part = &zps_record_why},
};
const struct zps_fields zps_record_cause = {ZPS_FIELDS_OF(struct zps_member_cause, cause)};

/* Each record has some of the members. */
struct change {
  uint64_t job_id;
  uint32_t server, rank, tensor;
  enum zps_rank_state rank_state;
  enum zps_tensor_state tensor_state;
  const char *group;
  char lost_servers[ZPS_LOST_SERVERS_SIZE];
  struct zps_error why;
  struct zps_member_cause cause;
};

#define AT(member) ZPS_FIELD_AT(struct change, member)
#define SERVER \
  { "server", ZPS_FIELD_NUMBER, AT(server) }
#define JOB \
  { "job_id", ZPS_FIELD_HEX, AT(job_id) }
#define RANK \
  { "rank", ZPS_FIELD_NUMBER, AT(rank), .max = ZPS_WORLD_MAX - 1 }
#define TENSOR \
  { "tensor", ZPS_FIELD_NUMBER, AT(tensor) }
#define WHY \
  { .type = ZPS_FIELD_PART, AT(why), .part = &zps_record_why, .optional = true }
static const struct zps_field server_gone[] = {SERVER};
static const struct zps_field job_failed[] = {
    JOB, WHY, {"lost_servers", ZPS_FIELD_TEXT, AT(lost_servers), .optional = true}};
static const struct zps_field job_gone[] = {JOB};
static const struct zps_field job_cause[] = {
    JOB, {"cause", ZPS_FIELD_OBJECT, AT(cause), .part = &zps_record_cause, .optional = true}};
static const struct zps_field rank[] = {
    JOB,
    RANK,
    {"state", ZPS_FIELD_WORD, AT(rank_state), .word = zps_record_rank_state, .min = ZPS_RANK_IN, .max = ZPS_RANK_LOST}};
static const struct zps_field tensor_state[] = {
    JOB,
    TENSOR,
    {"state", ZPS_FIELD_WORD, AT(tensor_state), .word = zps_record_tensor_state_name, .max = ZPS_TENSOR_FAILED},
    WHY};
static const struct zps_field tensor_gone[] = {JOB, TENSOR};
static const struct zps_field seat[] = {JOB, {"group", ZPS_FIELD_NAME, AT(group), .min = 1, .max = ZPS_NAME_MAX}, RANK};
#define FIELDS(what, table) \
  { .name = (what), ZPS_FIELDS_OF(struct change, table) }
const struct zps_fields zps_record_server_gone = FIELDS("server.gone", server_gone);
const struct zps_fields zps_record_job_failed = FIELDS("job.failed", job_failed);
const struct zps_fields zps_record_job_gone = FIELDS("job.gone", job_gone);
const struct zps_fields zps_record_job_cause = FIELDS("job.cause", job_cause);
const struct zps_fields zps_record_rank = FIELDS("rank", rank);
const struct zps_fields zps_record_tensor_state = FIELDS("tensor.state", tensor_state);
const struct zps_fields zps_record_tensor_gone = FIELDS("tensor.gone", tensor_gone);
const struct zps_fields zps_record_seat = FIELDS("seat", seat);

const void *zps_record_change_of(const struct zps_member_note *note, void *room) {
  struct change *const change = room;
  change->rank = note->rank;
  if (note->server) change->server = note->server->index;
  if (note->job) change->job_id = note->job->job_id;
  if (note->group) change->group = note->group->name;
  if (note->type == ZPS_NOTE_JOB_FAILED) {
    change->why = note->job->error;
    strcpy(change->lost_servers, note->job->lost_servers);
  }
  if (note->type == ZPS_NOTE_JOB_CAUSE) change->cause = note->job->cause;
  if (note->type == ZPS_NOTE_RANK) change->rank_state = note->job->ranks[note->rank]->state;
  if (!note->tensor) return change;
  change->tensor = note->tensor->spec.tensor;
  change->tensor_state = note->tensor->state;
  if (note->tensor->state == ZPS_TENSOR_FAILED) change->why = note->tensor->error;
  return change;
}

zps_err_t zps_record_change_restore(struct zps_members *members, enum zps_note_type type, const void *read,
                                    uint64_t now_ns) {
  const struct change *const is = read;
  switch (type) {
    case ZPS_NOTE_SERVER_GONE:
      return zps_members_restore_server_gone(members, is->server);
    case ZPS_NOTE_JOB_FAILED:
      return zps_members_restore_failed(members, is->job_id, &is->why, is->lost_servers);
    case ZPS_NOTE_JOB_GONE:
      return zps_members_restore_job_gone(members, is->job_id);
    case ZPS_NOTE_JOB_CAUSE:
      return zps_members_restore_cause(members, is->job_id, &is->cause);
    case ZPS_NOTE_RANK:
      return zps_members_restore_rank(members, is->job_id, is->rank, is->rank_state);
    case ZPS_NOTE_TENSOR_STATE:
      return zps_members_restore_tensor_state(members, is->job_id, is->tensor, is->tensor_state, &is->why, now_ns);
    case ZPS_NOTE_TENSOR_GONE:
      return zps_members_restore_tensor_gone(members, is->job_id, is->tensor);
    default: /* ZPS_NOTE_SEAT */
      return zps_members_restore_seat(members, is->job_id, is->group, is->rank);
  }
}
