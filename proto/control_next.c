#include "proto/control_next.h"

/* Of a process that was in a generation. */
static const struct zps_field last[] = {
    {"generation", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, generation), .min = 1, .max = UINT32_MAX - 1},
    {"last_rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, last_rank), .max = ZPS_WORLD_MAX - 1},
    {"last_job", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_next_spec, last_job)},
};
static const struct zps_fields last_fields = {ZPS_FIELDS_OF(struct zps_next_spec, last)};

static const struct zps_field next[] = {
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_next_spec, join), .part = &zps_control_join},
    {"min_world", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, min_world), .min = 1, .max = ZPS_WORLD_MAX},
    {"max_world", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, max_world), .min = 1, .max = ZPS_WORLD_MAX},
    {"wait_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, wait_ms), .max = ZPS_TIMEOUT_MAX_MS},
    {"step", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_next_spec, step)},
    {.type = ZPS_FIELD_PART, .part = &last_fields, .optional = true},
};
const struct zps_fields zps_control_next = {.name = "job.next", ZPS_FIELDS_OF(struct zps_next_spec, next)};

zps_json *zps_control_next_write(const struct zps_next_spec *spec) {
  return zps_fields_write(&zps_control_next, spec);
}

zps_err_t zps_control_next_read(const zps_json *params, struct zps_next_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) {
  *fabric = (struct zps_net_info){.addr_len = 0};
  *spec = (struct zps_next_spec){.join = {.fabric = fabric}};
  return zps_fields_complete(&zps_control_next, params, spec, error);
}

static zps_err_t check_answer(void *read, struct zps_error *error) {
  const struct zps_next_answer *const of = read;
  const bool is_rank = of->rank >= of->world;
  const uint32_t number = is_rank ? of->rank : of->generation.source;
  if (number < of->world) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is %u, want 0 to %u", is_rank ? "rank" : "source", number,
                  of->world - 1);
}

#define AT(member) ZPS_FIELD_AT(struct zps_next_answer, member)
static const struct zps_field answer[] = {
    {"generation", ZPS_FIELD_NUMBER, AT(generation.number), .min = 1},
    {"rank", ZPS_FIELD_NUMBER, AT(rank), .max = ZPS_WORLD_MAX - 1},
    {"world", ZPS_FIELD_NUMBER, AT(world), .min = 1, .max = ZPS_WORLD_MAX},
    {"source", ZPS_FIELD_NUMBER, AT(generation.source), .max = ZPS_WORLD_MAX - 1},
    {"step", ZPS_FIELD_NUMBER, AT(generation.step)},
};
#undef AT
const struct zps_fields zps_control_next_answer = {
    .name = "job.next answer", ZPS_FIELDS_OF(struct zps_next_answer, answer), .check = check_answer};

zps_json *zps_control_generation_write(zps_json *object, const struct zps_generation *generation, uint32_t rank,
                                       uint32_t world) {
  const struct zps_next_answer sent = {.generation = *generation, .rank = rank, .world = world};
  return generation->number ? zps_fields_add(object, &zps_control_next_answer, &sent) : object;
}

zps_err_t zps_control_generation_read(const zps_json *object, struct zps_generation *generation, uint32_t *rank_p,
                                      uint32_t *world_p, struct zps_error *error) {
  struct zps_next_answer of;
  *generation = (struct zps_generation){.number = 0};
  if (!zps_json_get(object, "generation")) return ZPS_OK;
  const zps_err_t err = zps_fields_read(&zps_control_next_answer, object, &of, error);
  if (err) return err;
  *generation = of.generation;
  *rank_p = of.rank;
  *world_p = of.world;
  return ZPS_OK;
}

static const struct zps_field leave[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_leave_spec, job_id)},
    {"next", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_leave_spec, moves), .optional = true},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_leave_spec, first), .part = &zps_control_error},
};
const struct zps_fields zps_control_leave = {.name = "job.leave", ZPS_FIELDS_OF(struct zps_leave_spec, leave)};
