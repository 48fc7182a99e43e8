/* Records of tensors. */
#include "server/coordinator/records_impl.h"

const char *zps_record_tensor_state_name(unsigned state) {
  static const char *const words[] = {
      [ZPS_TENSOR_OPENING] = "opening", [ZPS_TENSOR_OPEN] = "open", [ZPS_TENSOR_FAILED] = "failed"};
  return words[state];
}

struct image {
  struct zps_tensor_spec spec;
  uint32_t first_rank;
  enum zps_tensor_state state;
  struct zps_error why;
};

static zps_err_t check(void *read, struct zps_error *error) {
  const struct image *const image = read;
  if (image->spec.n_parts > 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'partitions' is 0, want 1 to %u", ZPS_PARTITION_PARTS_MAX);
}

#define AT(member) ZPS_FIELD_AT(struct image, member)
static const struct zps_field fields[] = {
    {.type = ZPS_FIELD_PART, AT(spec), .part = &zps_control_register},
    {"tensor", ZPS_FIELD_NUMBER, AT(spec.tensor)},
    {"owners", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct image, spec.owners, spec.n_parts), .per = "partitions",
     .max = ZPS_SERVERS_MAX - 1},
    {"first_rank", ZPS_FIELD_NUMBER, AT(first_rank), .max = ZPS_WORLD_MAX - 1},
    {"state", ZPS_FIELD_WORD, AT(state), .word = zps_record_tensor_state_name, .max = ZPS_TENSOR_FAILED},
    {.type = ZPS_FIELD_PART, AT(why), .part = &zps_record_why, .optional = true},
};
#undef AT
const struct zps_fields zps_record_tensor = {.name = "tensor", ZPS_FIELDS_OF(struct image, fields), .check = check};

const void *zps_record_tensor_of(const struct zps_member_tensor *tensor, void *room) {
  struct image *const image = room;
  *image = (struct image){.spec = tensor->spec, .first_rank = tensor->first_rank, .state = tensor->state};
  if (tensor->state == ZPS_TENSOR_FAILED) image->why = tensor->error;
  return image;
}

zps_err_t zps_record_tensor_restore(struct zps_members *members, const void *read, uint64_t now_ns) {
  const struct image *const is = read;
  return zps_members_restore_tensor(members, &is->spec, is->first_rank, is->state, &is->why, now_ns);
}
