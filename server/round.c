#include "server/round.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "round"
#include "common/base/clock.h"
#include "common/base/log.h"

enum slot { SLOT_NONE, SLOT_ANNOUNCED, SLOT_HERE };
enum rank_flag { RANK_PUSHED = 1, RANK_DONE = 2, RANK_GONE = 4, RANK_IDLE = 8 };

static const char *const state_names[] = {
    [ZPS_ROUND_COLLECTING] = "collecting", [ZPS_ROUND_REDUCING] = "reducing", [ZPS_ROUND_PUBLISHED] = "published",
    [ZPS_ROUND_RETIRED] = "retired",       [ZPS_ROUND_ABORTED] = "aborted",
};

const char *zps_round_state_name(enum zps_round_state state) {
  return state_names[state];
}

zps_err_t zps_round_create(uint32_t world, uint32_t n_parts, struct zps_round **round_p) {
  const size_t n_slots = (size_t)world * n_parts;
  struct zps_round *round = calloc(
      1, sizeof *round + n_parts * (sizeof round->part_here[0] + sizeof round->part_reduced[0]) + n_slots + world);
  if (!round) return ZPS_ERR_NOMEM;
  round->world = world;
  round->n_parts = n_parts;
  round->part_here = (uint32_t *)(round + 1);
  round->part_reduced = (uint8_t *)(round->part_here + n_parts);
  round->slots = round->part_reduced + n_parts;
  round->ranks = round->slots + n_slots;
  *round_p = round;
  return ZPS_OK;
}

void zps_round_destroy(struct zps_round *round) {
  free(round);
}

static void set_state(struct zps_round *round, enum zps_round_state state) {
  zps_log_debug("job %s, tensor %s, step %" PRIu64 ": %s > %s", round->config.job, round->config.tensor,
                round->config.step, state_names[round->state], state_names[state]);
  round->state = state;
}

void zps_round_start(struct zps_round *round, const struct zps_round_config *config) {
  round->config = *config;
  round->state = ZPS_ROUND_COLLECTING;
  round->deadline_ns = ZPS_NEVER;
  round->n_here = 0;
  round->n_reduced = 0;
  round->n_remote = 0;
  memset(round->part_here, 0, round->n_parts * sizeof round->part_here[0]);
  memset(round->part_reduced, 0, round->n_parts + (size_t)round->world * round->n_parts + round->world);
  round->n_needed = round->world;
  for (uint32_t rank = 0; config->idle && rank < round->world; rank++) {
    if (!config->idle[rank]) continue;
    round->ranks[rank] = RANK_IDLE;
    round->n_needed--;
  }
  round->n_reading = round->n_needed;
  if (round->n_parts == 0) set_state(round, ZPS_ROUND_PUBLISHED);
}

bool zps_round_over(const struct zps_round *round) {
  return round->state == ZPS_ROUND_RETIRED || round->state == ZPS_ROUND_ABORTED;
}

bool zps_round_wants_abort(const struct zps_round *round, uint32_t rank) {
  return round->ranks[rank] == RANK_PUSHED;
}

bool zps_round_rank_gone(const struct zps_round *round, uint32_t rank) {
  return round->ranks[rank] & (RANK_GONE | RANK_IDLE);
}

bool zps_round_part_reduced(const struct zps_round *round, uint32_t part) {
  return round->part_reduced[part];
}

static uint8_t *slot_of(const struct zps_round *round, uint32_t part, uint32_t rank) {
  return &round->slots[(size_t)part * round->world + rank];
}

bool zps_round_has(const struct zps_round *round, uint32_t rank, uint32_t part) {
  return *slot_of(round, part, rank) != SLOT_NONE;
}

static void add_action(struct zps_round_actions *actions, enum zps_round_action_type type, uint32_t rank,
                       uint32_t part) {
  actions->list[actions->n++] = (struct zps_round_action){.type = type, .rank = rank, .part = part};
}

/* Appends to the abort's text; what does not fit is cut off. */
static void say(struct zps_frame_abort *abort, const char *fmt, ...) ZPS_PRINTF(2, 3);
static void say(struct zps_frame_abort *abort, const char *fmt, ...) {
  const size_t len = strlen(abort->text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(abort->text + len, sizeof abort->text - len, fmt, args);
  va_end(args);
}

static struct zps_frame_abort *begin_abort(struct zps_round *round, struct zps_round_actions *actions, zps_err_t code) {
  struct zps_frame_abort *abort = &actions->abort;
  set_state(round, ZPS_ROUND_ABORTED);
  add_action(actions, ZPS_ROUND_ABORT, ZPS_ROUND_NO_RANK, 0);
  abort->step = round->config.step;
  abort->code = code;
  abort->n_ranks = 0;
  abort->text[0] = '\0';
  say(abort, "job %s, tensor %s, step %" PRIu64 ": ", round->config.job, round->config.tensor, round->config.step);
  return abort;
}

static void name_rank(struct zps_frame_abort *abort, uint32_t rank) {
  if (abort->n_ranks < ZPS_WIRE_RANKS_MAX) abort->ranks[abort->n_ranks++] = rank;
}

static uint32_t count_slots(const struct zps_round *round, uint32_t rank, enum slot slot) {
  uint32_t n = 0;
  for (uint32_t part = 0; part < round->n_parts; part++) n += *slot_of(round, part, rank) == slot;
  return n;
}

static void expire(struct zps_round *round, struct zps_round_actions *actions) {
  enum { NAMED_MAX = 12 };
  struct zps_frame_abort *abort = begin_abort(round, actions, ZPS_ERR_MISSING);
  uint32_t n_missing = 0;
  for (uint32_t rank = 0; rank < round->world; rank++) {
    const uint32_t n_none = count_slots(round, rank, SLOT_NONE);
    if (n_none == 0 || (round->ranks[rank] & RANK_IDLE)) continue;
    if (n_missing == 0) say(abort, "the deadline passed without the push of rank");
    name_rank(abort, rank);
    if (n_missing++ >= NAMED_MAX) continue;
    say(abort, "%s %u", n_missing > 1 ? "," : "", rank);
    if (n_none == round->n_parts) continue;
    const char *before = " (partition ";
    for (uint32_t part = 0; part < round->n_parts; part++) {
      if (*slot_of(round, part, rank) != SLOT_NONE) continue;
      say(abort, "%s%u", before, round->config.partitions[part]);
      before = " ";
    }
    say(abort, ")");
  }
  if (n_missing > NAMED_MAX) say(abort, " and %u more", n_missing - NAMED_MAX);
  if (n_missing > 0) {
    say(abort, " (%u of %u ranks are here)", round->n_needed - n_missing, round->n_needed);
    return;
  }
  abort->code = ZPS_ERR_TIMEOUT;
  say(abort, "the deadline passed with %" PRIu64 " of %" PRIu64 " contributions read and %u of %u partitions summed",
      round->n_here, (uint64_t)round->n_needed * round->n_parts, round->n_reduced, round->n_parts);
}

static void take_contribution(struct zps_round *round, uint32_t part, uint32_t rank,
                              struct zps_round_actions *actions) {
  *slot_of(round, part, rank) = SLOT_HERE;
  round->n_here++;
  if (++round->part_here[part] == round->n_needed) add_action(actions, ZPS_ROUND_REDUCE, ZPS_ROUND_NO_RANK, part);
  if (round->n_here == (uint64_t)round->n_needed * round->n_parts) set_state(round, ZPS_ROUND_REDUCING);
}

static void announced(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions) {
  uint8_t *slot = slot_of(round, event->part, event->rank);
  if (*slot != SLOT_NONE) {
    struct zps_frame_abort *abort = begin_abort(round, actions, ZPS_ERR_PROTOCOL);
    say(abort, "rank %u pushed partition %u twice", event->rank, round->config.partitions[event->part]);
    name_rank(abort, event->rank);
    return;
  }
  round->ranks[event->rank] |= RANK_PUSHED;
  if (event->deadline_ns < round->deadline_ns) round->deadline_ns = event->deadline_ns;
  if (event->is_here) {
    take_contribution(round, event->part, event->rank, actions);
    return;
  }
  *slot = SLOT_ANNOUNCED;
  add_action(actions, ZPS_ROUND_READ, event->rank, event->part);
}

static void landed(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions) {
  if (*slot_of(round, event->part, event->rank) == SLOT_ANNOUNCED)
    take_contribution(round, event->part, event->rank, actions);
}

static void retire_if_read(struct zps_round *round, struct zps_round_actions *actions) {
  if (round->state != ZPS_ROUND_PUBLISHED || (round->n_reading > 0 && round->n_remote > 0)) return;
  set_state(round, ZPS_ROUND_RETIRED);
  add_action(actions, ZPS_ROUND_RETIRE, ZPS_ROUND_NO_RANK, 0);
}

static void reduced(struct zps_round *round, uint32_t part, bool is_here, struct zps_round_actions *actions) {
  if (round->part_reduced[part] || round->part_here[part] < round->n_needed) return;
  round->part_reduced[part] = 1;
  round->n_remote += !is_here;
  add_action(actions, ZPS_ROUND_PUBLISH, ZPS_ROUND_NO_RANK, part);
  if (++round->n_reduced == round->n_parts) set_state(round, ZPS_ROUND_PUBLISHED);
  retire_if_read(round, actions);
}

static void stop_reading(struct zps_round *round, uint32_t rank, enum rank_flag why,
                         struct zps_round_actions *actions) {
  if (!(round->ranks[rank] & (RANK_DONE | RANK_GONE))) round->n_reading--;
  round->ranks[rank] |= why;
  retire_if_read(round, actions);
}

static void done(struct zps_round *round, uint32_t rank, struct zps_round_actions *actions) {
  if (round->state == ZPS_ROUND_PUBLISHED) {
    stop_reading(round, rank, RANK_DONE, actions);
    return;
  }
  struct zps_frame_abort *abort = begin_abort(round, actions, ZPS_ERR_PROTOCOL);
  say(abort, "rank %u says that it has read the results, but only %u of %u partitions are published", rank,
      round->n_reduced, round->n_parts);
  name_rank(abort, rank);
}

static void name_blamed(struct zps_frame_abort *abort, const struct zps_round_event *event) {
  for (uint32_t i = 0; i < event->n_blamed; i++) name_rank(abort, event->blamed[i]);
  if (event->n_blamed == 0) name_rank(abort, event->rank);
}

static void gone(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions) {
  if (count_slots(round, event->rank, SLOT_HERE) == round->n_parts) {
    stop_reading(round, event->rank, RANK_GONE, actions);
    return;
  }
  round->ranks[event->rank] |= RANK_GONE;
  struct zps_frame_abort *abort = begin_abort(round, actions, event->code);
  say(abort, "rank %u is needed and gone: %s", event->rank, event->text);
  name_blamed(abort, event);
}

static void cancel(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions) {
  if (round->state == ZPS_ROUND_PUBLISHED) { /* the others have all they need */
    stop_reading(round, event->rank, RANK_DONE, actions);
    return;
  }
  struct zps_frame_abort *abort = begin_abort(round, actions, event->code);
  say(abort, "rank %u gave it up: %s", event->rank, event->text);
  name_blamed(abort, event);
}

static void fail(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions) {
  struct zps_frame_abort *abort = begin_abort(round, actions, event->code);
  if (event->rank != ZPS_ROUND_NO_RANK) {
    say(abort, "rank %u: ", event->rank);
    name_rank(abort, event->rank);
  }
  say(abort, "%s", event->text);
}

void zps_round_step(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions) {
  actions->n = 0;
  if (zps_round_over(round)) return;
  const bool is_of_rank = event->type == ZPS_ROUND_ANNOUNCED || event->type == ZPS_ROUND_LANDED ||
                          event->type == ZPS_ROUND_DONE || event->type == ZPS_ROUND_GONE ||
                          event->type == ZPS_ROUND_CANCEL;
  if (is_of_rank && zps_round_rank_gone(round, event->rank)) return;
  switch (event->type) {
    case ZPS_ROUND_ANNOUNCED:
      announced(round, event, actions);
      break;
    case ZPS_ROUND_LANDED:
      landed(round, event, actions);
      break;
    case ZPS_ROUND_REDUCED:
      reduced(round, event->part, event->is_here, actions);
      break;
    case ZPS_ROUND_DONE:
      done(round, event->rank, actions);
      break;
    case ZPS_ROUND_GONE:
      gone(round, event, actions);
      break;
    case ZPS_ROUND_CANCEL:
      cancel(round, event, actions);
      break;
    case ZPS_ROUND_FAIL:
      fail(round, event, actions);
      break;
    case ZPS_ROUND_TICK:
      if (round->state < ZPS_ROUND_PUBLISHED && event->now_ns >= round->deadline_ns) expire(round, actions);
      break;
  }
}
