#define ZPS_LOG_COMPONENT "scheme"
#include "worker/schemes/scheme.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/log.h"

#define BIT(state) (1u << ZPS_SCHEME_##state)

static const struct {
  const char *name;
  unsigned next; /* states that may follow */
} states[] = {
    [ZPS_SCHEME_IDLE] = {"idle", BIT(ENCODING) | BIT(EXCHANGING)},
    [ZPS_SCHEME_ENCODING] = {"encoding", BIT(PUSHING) | BIT(FAILED)},
    [ZPS_SCHEME_PUSHING] = {"pushing", BIT(WAITING) | BIT(FAILED)},
    [ZPS_SCHEME_WAITING] = {"waiting", BIT(PULLING) | BIT(FAILED)},
    [ZPS_SCHEME_PULLING] = {"pulling", BIT(DONE) | BIT(FAILED)},
    [ZPS_SCHEME_EXCHANGING] = {"exchanging", BIT(DONE) | BIT(FAILED)},
    [ZPS_SCHEME_DONE] = {"done", 0},
    [ZPS_SCHEME_FAILED] = {"failed", 0},
};

static const char *const event_names[] = {
    [ZPS_SCHEME_START] = "start",     [ZPS_SCHEME_SCANNED] = "scanned",
    [ZPS_SCHEME_WRITTEN] = "written", [ZPS_SCHEME_RESULT] = "result",
    [ZPS_SCHEME_LANDED] = "landed",   [ZPS_SCHEME_CLEARED] = "cleared",
    [ZPS_SCHEME_DECODED] = "decoded", [ZPS_SCHEME_ABORTED] = "aborted",
    [ZPS_SCHEME_FAIL] = "fail",       [ZPS_SCHEME_SERVER_LOST] = "server lost",
    [ZPS_SCHEME_TICK] = "tick",
};

zps_err_t zps_scheme_create(const struct zps_scheme_ops *ops, const struct zps_scheme_plan *plan,
                            struct zps_scheme **scheme_p) {
  return ops->create(plan, scheme_p);
}

void zps_scheme_destroy(struct zps_scheme *scheme) {
  if (scheme) scheme->ops->destroy(scheme);
}

void zps_scheme_reset(struct zps_scheme *scheme, const struct zps_scheme_round *round) {
  scheme->round = *round;
  scheme->state = ZPS_SCHEME_IDLE;
  scheme->code = ZPS_OK;
  scheme->blame = ZPS_SCHEME_ALL;
  scheme->n_actions = 0;
  scheme->ops->reset(scheme);
}

void zps_scheme_step(struct zps_scheme *scheme, const struct zps_scheme_event *event, uint64_t now_ns) {
  scheme->n_actions = 0;
  if (!zps_scheme_over(scheme)) scheme->ops->step(scheme, event, now_ns);
}

bool zps_scheme_needs(const struct zps_scheme *scheme, uint32_t server) {
  return scheme->ops->needs(scheme, server);
}

bool zps_scheme_over(const struct zps_scheme *scheme) {
  return scheme->state == ZPS_SCHEME_DONE || scheme->state == ZPS_SCHEME_FAILED;
}

const char *zps_scheme_state_name(enum zps_scheme_state state) {
  return (unsigned)state < sizeof states / sizeof states[0] ? states[state].name : "?";
}

const char *zps_scheme_event_name(enum zps_scheme_event_type type) {
  return (unsigned)type < sizeof event_names / sizeof event_names[0] ? event_names[type] : "?";
}

zps_err_t zps_scheme_init(struct zps_scheme *scheme, const struct zps_scheme_ops *ops,
                          const struct zps_scheme_plan *plan, uint32_t cap_actions) {
  scheme->actions = calloc(cap_actions, sizeof *scheme->actions);
  if (!scheme->actions) return ZPS_ERR_NOMEM;
  scheme->ops = ops;
  scheme->plan = *plan;
  scheme->cap_actions = cap_actions;
  return ZPS_OK;
}

void zps_scheme_fini(struct zps_scheme *scheme) {
  free(scheme->actions);
}

void zps_scheme_act(struct zps_scheme *scheme, enum zps_scheme_action_type type, uint32_t arg) {
  assert(scheme->n_actions < scheme->cap_actions);
  scheme->actions[scheme->n_actions++] = (struct zps_scheme_action){.type = type, .arg = arg};
}

void zps_scheme_set_state(struct zps_scheme *scheme, enum zps_scheme_state state, uint64_t now_ns) {
  assert(states[scheme->state].next & (1u << state));
  zps_log_trace("tensor %s step %" PRIu64 ": %s -> %s (%s, %" PRId64 " ms before its deadline)", scheme->plan.tensor,
                scheme->round.step, states[scheme->state].name, states[state].name, zps_err_name(scheme->code),
                (int64_t)(scheme->round.deadline_ns - now_ns) / 1000000);
  scheme->state = state;
}
