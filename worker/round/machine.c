#define ZPS_LOG_COMPONENT "scheme"
#include "worker/round/machine.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/log.h"

#define BIT(state) (1u << ZPS_MACHINE_##state)

static const struct {
  const char *name;
  unsigned next; /* states that may follow */
} states[] = {
    [ZPS_MACHINE_IDLE] = {"idle", BIT(ENCODING) | BIT(WAITING) | BIT(EXCHANGING)},
    [ZPS_MACHINE_ENCODING] = {"encoding", BIT(PUSHING) | BIT(FAILED)},
    [ZPS_MACHINE_PUSHING] = {"pushing", BIT(WAITING) | BIT(FAILED)},
    [ZPS_MACHINE_WAITING] = {"waiting", BIT(PULLING) | BIT(DONE) | BIT(FAILED)},
    [ZPS_MACHINE_PULLING] = {"pulling", BIT(DONE) | BIT(FAILED)},
    [ZPS_MACHINE_EXCHANGING] = {"exchanging", BIT(DONE) | BIT(FAILED)},
    [ZPS_MACHINE_DONE] = {"done", 0},
    [ZPS_MACHINE_FAILED] = {"failed", 0},
};

zps_err_t zps_round_machine_create(const struct zps_round_machine_ops *ops, const struct zps_round_machine_plan *plan,
                                   struct zps_round_machine **scheme_p) {
  return ops->create(plan, scheme_p);
}

void zps_round_machine_destroy(struct zps_round_machine *machine) {
  if (machine) machine->ops->destroy(machine);
}

void zps_round_machine_reset(struct zps_round_machine *machine, const struct zps_round_machine_start *round) {
  machine->round = *round;
  machine->state = ZPS_MACHINE_IDLE;
  machine->code = ZPS_OK;
  machine->blame = ZPS_MACHINE_ALL;
  machine->n_actions = 0;
  machine->ops->reset(machine);
}

void zps_round_machine_step(struct zps_round_machine *machine, const struct zps_round_machine_event *event,
                            uint64_t now_ns) {
  machine->n_actions = 0;
  if (!zps_round_machine_over(machine)) machine->ops->step(machine, event, now_ns);
}

bool zps_round_machine_needs(const struct zps_round_machine *machine, uint32_t server) {
  return machine->ops->needs(machine, server);
}

bool zps_round_machine_over(const struct zps_round_machine *machine) {
  return machine->state == ZPS_MACHINE_DONE || machine->state == ZPS_MACHINE_FAILED;
}

const char *zps_round_machine_state_name(enum zps_round_machine_state state) {
  return (unsigned)state < sizeof states / sizeof states[0] ? states[state].name : "?";
}

zps_err_t zps_round_machine_init(struct zps_round_machine *machine, const struct zps_round_machine_ops *ops,
                                 const struct zps_round_machine_plan *plan, uint32_t cap_actions) {
  machine->actions = calloc(cap_actions, sizeof *machine->actions);
  if (!machine->actions) return ZPS_ERR_NOMEM;
  machine->ops = ops;
  machine->plan = *plan;
  machine->cap_actions = cap_actions;
  return ZPS_OK;
}

void zps_round_machine_fini(struct zps_round_machine *machine) {
  free(machine->actions);
}

void zps_round_machine_act(struct zps_round_machine *machine, enum zps_round_machine_action_type type, uint32_t arg) {
  assert(machine->n_actions < machine->cap_actions);
  machine->actions[machine->n_actions++] = (struct zps_round_machine_action){.type = type, .arg = arg};
}

void zps_round_machine_set_state(struct zps_round_machine *machine, enum zps_round_machine_state state,
                                 uint64_t now_ns) {
  assert(states[machine->state].next & (1u << state));
  zps_log_trace("tensor %s step %" PRIu64 ": %s -> %s (%s, %" PRId64 " ms before its deadline)", machine->plan.tensor,
                machine->round.step, states[machine->state].name, states[state].name, zps_err_name(machine->code),
                (int64_t)(machine->round.deadline_ns - now_ns) / 1000000);
  machine->state = state;
}
