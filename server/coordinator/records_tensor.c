/* Records of tensors. */
#include <string.h>

#include "server/coordinator/records_impl.h"

zps_json *zps_record_tensor_gone_write(const struct zps_member_note *note) {
  return zps_control_tensor_forget_write(
      &(struct zps_job_call){.job_id = note->job->job_id, .tensor = note->tensor->spec.tensor});
}

static const char *const tensor_states[] = {
    [ZPS_TENSOR_OPENING] = "opening", [ZPS_TENSOR_OPEN] = "open", [ZPS_TENSOR_FAILED] = "failed"};

static zps_json *set_tensor_state(zps_json *record, const struct zps_member_tensor *tensor) {
  record = zps_json_set_str(record, "state", tensor_states[tensor->state]);
  return tensor->state == ZPS_TENSOR_FAILED ? zps_record_set_error(record, &tensor->error) : record;
}

static zps_err_t get_tensor_state(const zps_json *record, enum zps_tensor_state *state_p, struct zps_error *error) {
  const char *name = "";
  const zps_err_t err = zps_json_get_str(record, "state", &name, error);
  if (err) return err;
  for (unsigned i = 0; i < sizeof tensor_states / sizeof tensor_states[0]; i++) {
    if (strcmp(name, tensor_states[i]) != 0) continue;
    *state_p = (enum zps_tensor_state)i;
    return ZPS_OK;
  }
  return zps_fail(error, ZPS_ERR_PROTOCOL, "there is no state '%.40s' of tensors", name);
}

zps_json *zps_record_tensor_write(const struct zps_member_note *note) {
  const struct zps_tensor_spec *spec = &note->tensor->spec;
  zps_json *record = zps_json_set_u64(zps_control_register_write(spec), "tensor", spec->tensor);
  record = zps_control_set_u32s(record, "owners", spec->owners, spec->n_parts);
  record = zps_json_set_u64(record, "first_rank", note->tensor->first_rank);
  return set_tensor_state(record, note->tensor);
}

zps_err_t zps_record_tensor_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                 struct zps_error *error) {
  struct zps_tensor_spec spec;
  struct zps_error why;
  enum zps_tensor_state state = ZPS_TENSOR_OPEN;
  uint32_t first_rank = 0, n_owners = 0, *owners = NULL;
  zps_err_t err = zps_control_register_read(record, &spec, error);
  if (err) return err;
  err = zps_control_get_u32(record, "tensor", 0, UINT32_MAX, &spec.tensor, error);
  if (!err) err = zps_control_get_u32(record, "first_rank", 0, ZPS_WORLD_MAX - 1, &first_rank, error);
  if (!err) err = get_tensor_state(record, &state, error);
  zps_record_get_error(record, &why);
  if (!err)
    err = zps_control_get_u32s(record, "owners", ZPS_PARTITION_PARTS_MAX, ZPS_SERVERS_MAX, &owners, &n_owners, error);
  spec.owners = owners;
  if (!err && n_owners != spec.n_parts)
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "%u owners of %u partitions", n_owners, spec.n_parts);
  if (!err) err = zps_record_fits(zps_members_restore_tensor(members, &spec, first_rank, state, &why, now_ns), error);
  zps_tensor_spec_fini(&spec);
  return err;
}

zps_json *zps_record_tensor_state_write(const struct zps_member_note *note) {
  return set_tensor_state(zps_record_tensor_gone_write(note), note->tensor);
}

zps_err_t zps_record_tensor_state_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                       struct zps_error *error) {
  enum zps_tensor_state state = ZPS_TENSOR_OPEN;
  struct zps_error why;
  struct zps_job_call of;
  zps_err_t err = zps_control_tensor_forget_read(record, &of, error);
  if (!err) err = get_tensor_state(record, &state, error);
  zps_record_get_error(record, &why);
  return err ? err
             : zps_record_fits(zps_members_restore_tensor_state(members, of.job_id, of.tensor, state, &why, now_ns),
                               error);
}

zps_err_t zps_record_tensor_gone_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                      struct zps_error *error) {
  struct zps_job_call of;
  (void)now_ns;
  const zps_err_t err = zps_control_tensor_forget_read(record, &of, error);
  return err ? err : zps_record_fits(zps_members_restore_tensor_gone(members, of.job_id, of.tensor), error);
}
