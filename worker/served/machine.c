/* Zen's Balanced Parallelism: every partition goes to its owner, the sum comes back from there. */
#include <stdlib.h>

#include "worker/round/machine.h"

enum part_state {
  PART_ENCODING,
  PART_ANNOUNCED, /* the owner may read it */
  PART_READING,   /* the owner has announced its sum */
  PART_LANDED,
  PART_DECODING,
  PART_DECODED,
};

struct balanced {
  struct zps_round_machine base;
  bool cleared;
  uint32_t n_scanned, n_announced, n_results, n_landed, n_decoded, n_taken;
  uint32_t *parts_of;  /* per server: partitions it owns */
  uint32_t *to_read;   /* per server: those not landed yet, or again to be announced */
  uint8_t *part_state; /* enum part_state, per partition */
  uint8_t *is_again;   /* per partition: its sum is here, and another owner will announce it again */
  uint32_t n_again;    /* partitions with is_again */
  uint32_t *landed_of; /* per stripe: sums that have landed */
};

static void balanced_destroy(struct zps_round_machine *machine) {
  struct balanced *self = (struct balanced *)machine;
  zps_round_machine_fini(machine);
  free(self->parts_of);
  free(self->to_read);
  free(self->part_state);
  free(self->is_again);
  free(self->landed_of);
  free(self);
}

static zps_err_t balanced_create(const struct zps_round_machine_plan *plan, struct zps_round_machine **scheme_p) {
  struct balanced *self = calloc(1, sizeof *self);
  if (!self) return ZPS_ERR_NOMEM;
  self->parts_of = calloc(plan->n_servers, sizeof *self->parts_of);
  self->to_read = calloc(plan->n_servers, sizeof *self->to_read);
  self->part_state = calloc(plan->n_parts, sizeof *self->part_state);
  self->is_again = calloc(plan->n_parts, sizeof *self->is_again);
  self->landed_of = calloc(plan->n_stripes, sizeof *self->landed_of);
  /* The longest answers: a failure told to every server; every partition given up and announced to another owner. */
  const uint32_t cap_actions = 2 * plan->n_parts + plan->n_servers + 2;
  if (!self->parts_of || !self->to_read || !self->part_state || !self->is_again || !self->landed_of ||
      zps_round_machine_init(&self->base, &zps_served_machine, plan, cap_actions) != ZPS_OK) {
    balanced_destroy(&self->base);
    return ZPS_ERR_NOMEM;
  }
  *scheme_p = &self->base;
  return ZPS_OK;
}

static void count_parts(struct balanced *self) {
  const struct zps_round_machine_plan *plan = &self->base.plan;
  for (uint32_t s = 0; s < plan->n_servers; s++) self->parts_of[s] = 0;
  for (uint32_t p = 0; p < plan->n_parts; p++) self->parts_of[plan->owners[p]]++;
  for (uint32_t s = 0; s < plan->n_servers; s++) self->to_read[s] = self->parts_of[s];
}

static void balanced_reset(struct zps_round_machine *machine) {
  struct balanced *self = (struct balanced *)machine;
  self->cleared = false;
  self->n_again = 0;
  self->n_scanned = self->n_announced = self->n_results = self->n_landed = self->n_decoded = self->n_taken = 0;
  count_parts(self);
  for (uint32_t p = 0; p < machine->plan.n_parts; p++) {
    self->part_state[p] = PART_ENCODING;
    self->is_again[p] = false;
  }
  for (uint32_t stripe = 0; stripe < machine->plan.n_stripes; stripe++) self->landed_of[stripe] = 0;
}

static bool balanced_needs(const struct zps_round_machine *machine, uint32_t server) {
  const struct balanced *self = (const struct balanced *)machine;
  return server < machine->plan.n_servers && self->to_read[server] > 0;
}

/* Tells every server that may still wait for us. A server whose sums we have all read has been told so: for it the
 * round is over. */
static void fail(struct balanced *self, zps_err_t code, uint32_t server, uint64_t now_ns) {
  self->base.code = code;
  self->base.blame = server;
  zps_round_machine_set_state(&self->base, ZPS_MACHINE_FAILED, now_ns);
  for (uint32_t s = 0; s < self->base.plan.n_servers; s++) {
    if (s != server && self->to_read[s] > 0) zps_round_machine_act(&self->base, ZPS_MACHINE_DO_ABORT, s);
  }
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_COMPLETE, 0);
}

static void decode(struct balanced *self, uint32_t p) {
  self->part_state[p] = PART_DECODING;
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_DECODE, p);
}

/* The result may share memory with the gradient: then nothing is cleared or decoded before everything is encoded. */
static bool may_decode(const struct balanced *self) {
  return self->base.round.is_apart || self->n_announced == self->base.plan.n_parts;
}

static void decode_whole(struct balanced *self) {
  const uint32_t n_parts = self->base.plan.n_parts;
  if (self->n_announced < n_parts || self->n_landed < n_parts) return;
  for (uint32_t p = 0; p < n_parts; p++) self->part_state[p] = PART_DECODING;
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_DECODE, ZPS_MACHINE_ALL);
}

/* A stripe when all of its sums have landed. */
static void decode_stripe(struct balanced *self, uint32_t stripe) {
  const uint32_t n = self->base.plan.n_parts / self->base.plan.n_stripes;
  if (self->landed_of[stripe] < n || !may_decode(self)) return;
  for (uint32_t p = stripe * n; p < (stripe + 1) * n; p++) {
    if (self->part_state[p] != PART_LANDED) return;
    self->part_state[p] = PART_DECODING;
  }
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_STRIPE, stripe);
}

static void on_all_written(struct balanced *self) {
  const uint32_t n_stripes = self->base.plan.n_stripes;
  if (self->base.round.whole)
    decode_whole(self);
  else if (n_stripes == 1)
    zps_round_machine_act(&self->base, ZPS_MACHINE_DO_CLEAR, 0);
  else
    for (uint32_t stripe = 0; stripe < n_stripes; stripe++) decode_stripe(self, stripe);
}

static void on_written(struct balanced *self, uint32_t p, uint64_t now_ns) {
  struct zps_round_machine *machine = &self->base;
  self->part_state[p] = PART_ANNOUNCED;
  self->n_announced++;
  zps_round_machine_act(machine, ZPS_MACHINE_DO_ANNOUNCE, p);
  if (machine->state == ZPS_MACHINE_ENCODING) zps_round_machine_set_state(machine, ZPS_MACHINE_PUSHING, now_ns);
  if (self->n_announced < machine->plan.n_parts) return;
  zps_round_machine_set_state(machine, ZPS_MACHINE_WAITING, now_ns);
  if (machine->round.only_gives) return;
  if (self->n_results > 0) zps_round_machine_set_state(machine, ZPS_MACHINE_PULLING, now_ns);
  on_all_written(self);
}

/* There is nothing to push, so every partition is as if it had been; or all is encoded already. */
static void start_announced(struct balanced *self, uint64_t now_ns) {
  const uint32_t n_parts = self->base.plan.n_parts;
  for (uint32_t p = 0; p < n_parts; p++) {
    self->part_state[p] = PART_ANNOUNCED;
    if (self->base.round.gives_again) zps_round_machine_act(&self->base, ZPS_MACHINE_DO_ANNOUNCE, p);
  }
  self->n_announced = n_parts;
  zps_round_machine_set_state(&self->base, ZPS_MACHINE_WAITING, now_ns);
}

/* Of a round that also takes sums, they tell as much. */
static void on_taken(struct balanced *self, uint32_t server, uint64_t now_ns) {
  const struct zps_round_machine_plan *plan = &self->base.plan;
  bool is_announced = true;
  if (!self->base.round.only_gives) return;
  for (uint32_t p = 0; p < plan->n_parts; p++)
    is_announced &= plan->owners[p] != server || self->part_state[p] == PART_ANNOUNCED;
  if (!is_announced || self->to_read[server] == 0) {
    fail(self, ZPS_ERR_PROTOCOL, ZPS_MACHINE_ALL, now_ns);
    self->base.blame = server;
    return;
  }
  self->n_taken += self->to_read[server];
  self->to_read[server] = 0;
  if (self->base.round.gives_again) zps_round_machine_act(&self->base, ZPS_MACHINE_DO_RETIRE, server);
  if (self->n_taken < plan->n_parts) return;
  zps_round_machine_set_state(&self->base, ZPS_MACHINE_DONE, now_ns);
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_COMPLETE, 0);
}

static void on_cleared(struct balanced *self, uint64_t now_ns) {
  const uint32_t n_parts = self->base.plan.n_parts;
  if (self->cleared || self->base.round.whole || self->base.plan.n_stripes > 1 || self->n_announced < n_parts) {
    fail(self, ZPS_ERR_INTERNAL, ZPS_MACHINE_ALL, now_ns);
    return;
  }
  self->cleared = true;
  for (uint32_t p = 0; p < n_parts; p++)
    if (self->part_state[p] == PART_LANDED) decode(self, p);
}

static void on_scanned(struct balanced *self, uint32_t scan) {
  if (self->base.round.only_takes && self->n_scanned == 0) {
    self->n_scanned++;
    on_all_written(self);
    return;
  }
  if (scan != self->n_scanned || scan >= self->base.round.n_scans) return;
  self->n_scanned++;
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_WRITE, scan);
}

static bool is_scanned(const struct balanced *self, uint32_t p) {
  const uint32_t scan_parts = self->base.plan.n_parts / self->base.round.n_scans;
  return p / scan_parts < self->n_scanned;
}

static void complete_if_decoded(struct balanced *self, uint64_t now_ns) {
  if (self->n_decoded < self->base.plan.n_parts || self->n_again > 0) return;
  zps_round_machine_set_state(&self->base, ZPS_MACHINE_DONE, now_ns);
  zps_round_machine_act(&self->base, ZPS_MACHINE_DO_COMPLETE, 0);
}

/* The sum is here already, from the server that was the owner: the same bits. The new one has read our push. */
static void on_result_again(struct balanced *self, uint32_t p, uint64_t now_ns) {
  const uint32_t server = self->base.plan.owners[p];
  self->is_again[p] = false;
  self->n_again--;
  if (--self->to_read[server] == 0) zps_round_machine_act(&self->base, ZPS_MACHINE_DO_RETIRE, server);
  complete_if_decoded(self, now_ns);
}

/* The servers are others, and have forgotten the round: all that is encoded is announced to its owner again. */
static void on_remap(struct balanced *self) {
  struct zps_round_machine *machine = &self->base;
  count_parts(self);
  self->n_again = self->n_taken = 0;
  for (uint32_t p = 0; p < machine->plan.n_parts; p++) {
    self->is_again[p] = self->part_state[p] >= PART_LANDED;
    self->n_again += self->is_again[p];
    if (self->part_state[p] == PART_ENCODING) continue;
    if (self->part_state[p] == PART_READING) {
      self->part_state[p] = PART_ANNOUNCED;
      zps_round_machine_act(machine, ZPS_MACHINE_DO_FORGET, p);
    }
    zps_round_machine_act(machine, ZPS_MACHINE_DO_ANNOUNCE, p);
  }
}

static void on_result(struct balanced *self, uint32_t p, uint64_t now_ns) {
  struct zps_round_machine *machine = &self->base;
  if (self->is_again[p]) {
    on_result_again(self, p, now_ns);
    return;
  }
  self->part_state[p] = PART_READING;
  self->n_results++;
  if (machine->state == ZPS_MACHINE_WAITING) zps_round_machine_set_state(machine, ZPS_MACHINE_PULLING, now_ns);
  zps_round_machine_act(machine, ZPS_MACHINE_DO_READ, p);
}

static void on_landed(struct balanced *self, uint32_t p) {
  const uint32_t server = self->base.plan.owners[p];
  self->part_state[p] = PART_LANDED;
  self->n_landed++;
  if (--self->to_read[server] == 0) zps_round_machine_act(&self->base, ZPS_MACHINE_DO_RETIRE, server);
  const uint32_t n_stripes = self->base.plan.n_stripes, stripe = p / (self->base.plan.n_parts / n_stripes);
  self->landed_of[stripe]++;
  if (self->base.round.whole)
    decode_whole(self);
  else if (n_stripes > 1)
    decode_stripe(self, stripe);
  else if (self->cleared)
    decode(self, p);
}

static void on_decoded(struct balanced *self, uint32_t p, uint64_t now_ns) {
  const uint32_t n_parts = self->base.plan.n_parts;
  if (p == ZPS_MACHINE_ALL) {
    for (uint32_t i = 0; i < n_parts; i++) self->part_state[i] = PART_DECODED;
    self->n_decoded = n_parts;
  } else {
    self->part_state[p] = PART_DECODED;
    self->n_decoded++;
  }
  complete_if_decoded(self, now_ns);
}

/* Whether this event may come next for the partition. Only `result` comes from a peer; for the others a mismatch would
 * be a bug of the driver's, and fails the round all the same. */
static bool expected(const struct balanced *self, const struct zps_round_machine_event *event) {
  const uint32_t p = event->partition;
  const bool whole = self->base.round.whole;
  if (event->type == ZPS_MACHINE_DECODED && whole) return p == ZPS_MACHINE_ALL && self->part_state[0] == PART_DECODING;
  if (p >= self->base.plan.n_parts) return false;
  switch (event->type) {
    case ZPS_MACHINE_WRITTEN:
      return is_scanned(self, p) && self->part_state[p] == PART_ENCODING;
    case ZPS_MACHINE_RESULT:
      return self->part_state[p] == PART_ANNOUNCED || self->is_again[p];
    case ZPS_MACHINE_LANDED:
      return self->part_state[p] == PART_READING;
    case ZPS_MACHINE_DECODED:
      return self->part_state[p] == PART_DECODING;
    default:
      return false;
  }
}

static void on_partition(struct balanced *self, const struct zps_round_machine_event *event, uint64_t now_ns) {
  if (!expected(self, event)) {
    const bool peer = event->type == ZPS_MACHINE_RESULT;
    fail(self, peer ? ZPS_ERR_PROTOCOL : ZPS_ERR_INTERNAL, ZPS_MACHINE_ALL, now_ns);
    if (peer) self->base.blame = event->server;
    return;
  }
  switch (event->type) {
    case ZPS_MACHINE_WRITTEN:
      on_written(self, event->partition, now_ns);
      break;
    case ZPS_MACHINE_RESULT:
      on_result(self, event->partition, now_ns);
      break;
    case ZPS_MACHINE_LANDED:
      on_landed(self, event->partition);
      break;
    default:
      on_decoded(self, event->partition, now_ns);
      break;
  }
}

static void balanced_step(struct zps_round_machine *machine, const struct zps_round_machine_event *event,
                          uint64_t now_ns) {
  struct balanced *self = (struct balanced *)machine;
  if (machine->state == ZPS_MACHINE_IDLE) {
    if (event->type != ZPS_MACHINE_START) return;
    if (machine->round.only_takes || machine->round.gives_again)
      start_announced(self, now_ns);
    else
      zps_round_machine_set_state(machine, ZPS_MACHINE_ENCODING, now_ns);
    return;
  }
  switch (event->type) {
    case ZPS_MACHINE_START:
      break;
    case ZPS_MACHINE_SCANNED:
      on_scanned(self, event->partition);
      break;
    case ZPS_MACHINE_CLEARED:
      on_cleared(self, now_ns);
      break;
    case ZPS_MACHINE_TAKEN:
      on_taken(self, event->server, now_ns);
      break;
    case ZPS_MACHINE_ABORTED:
      fail(self, event->code, event->server, now_ns);
      break;
    case ZPS_MACHINE_FAIL:
      fail(self, event->code, ZPS_MACHINE_ALL, now_ns);
      break;
    case ZPS_MACHINE_REMAP:
      on_remap(self);
      break;
    case ZPS_MACHINE_SERVER_LOST:
      if (balanced_needs(machine, event->server)) fail(self, ZPS_ERR_SERVER_LOST, event->server, now_ns);
      break;
    case ZPS_MACHINE_TICK:
      if (now_ns >= machine->round.deadline_ns) fail(self, ZPS_ERR_TIMEOUT, ZPS_MACHINE_ALL, now_ns);
      break;
    default:
      on_partition(self, event, now_ns);
      break;
  }
}

const struct zps_round_machine_ops zps_served_machine = {
    .name = "balanced",
    .create = balanced_create,
    .destroy = balanced_destroy,
    .reset = balanced_reset,
    .step = balanced_step,
    .needs = balanced_needs,
};
