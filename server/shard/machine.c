#include "server/shard/machine_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "round"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"

static const char *const state_names[] = {
    [ZPS_SHARD_COLLECTING] = "collecting", [ZPS_SHARD_REDUCING] = "reducing", [ZPS_SHARD_PUBLISHED] = "published",
    [ZPS_SHARD_RETIRED] = "retired",       [ZPS_SHARD_ABORTED] = "aborted",
};

zps_err_t zps_shard_machine_create(uint32_t world, uint32_t n_parts, struct zps_shard_machine **round_p) {
  const size_t n_slots = (size_t)world * n_parts;
  struct zps_shard_machine *machine =
      calloc(1, sizeof *machine + n_parts * (sizeof machine->part_here[0] + sizeof machine->part_reduced[0]) + n_slots +
                    world * (sizeof machine->rank_here[0] + sizeof machine->ranks[0]));
  if (!machine) return ZPS_ERR_NOMEM;
  machine->world = world;
  machine->n_parts = n_parts;
  machine->part_here = (uint32_t *)(machine + 1);
  machine->rank_here = machine->part_here + n_parts;
  machine->part_reduced = (uint8_t *)(machine->rank_here + world);
  machine->slots = machine->part_reduced + n_parts;
  machine->ranks = machine->slots + n_slots;
  *round_p = machine;
  return ZPS_OK;
}

void zps_shard_machine_destroy(struct zps_shard_machine *machine) {
  free(machine);
}

void zps_machine_set_state(struct zps_shard_machine *machine, enum zps_shard_machine_state state) {
  zps_log_about(.job = machine->config.job, .tensor = machine->config.tensor, ZPS_LOG_STEP(machine->config.step));
  zps_log_debug("job %s, tensor %s, step %" PRIu64 ": %s > %s", machine->config.job, machine->config.tensor,
                machine->config.step, state_names[machine->state], state_names[state]);
  machine->state = state;
}

void zps_shard_machine_start(struct zps_shard_machine *machine, const struct zps_shard_machine_config *config) {
  machine->config = *config;
  machine->state = ZPS_SHARD_COLLECTING;
  machine->deadline_ns = ZPS_NEVER;
  machine->n_here = 0;
  machine->n_reduced = 0;
  machine->n_remote = 0;
  machine->n_awaited = machine->n_pulls = 0;
  machine->is_kept = config->is_kept;
  machine->is_unsure = config->is_unsure;
  machine->is_closed = machine->is_decided = machine->has_push = false;
  machine->n_full = machine->n_out = machine->n_late = 0;
  machine->close_ns = ZPS_NEVER;
  memset(machine->part_here, 0, machine->n_parts * sizeof machine->part_here[0]);
  memset(machine->rank_here, 0, machine->world * sizeof machine->rank_here[0]);
  memset(machine->part_reduced, 0, machine->n_parts + (size_t)machine->world * machine->n_parts + machine->world);
  machine->n_needed = machine->world;
  for (uint32_t rank = 0; config->idle && rank < machine->world; rank++) {
    if (!config->idle[rank]) continue;
    machine->ranks[rank] = RANK_IDLE;
    machine->n_needed--;
  }
  machine->n_reading = machine->n_needed;
  if (machine->n_parts == 0) zps_machine_set_state(machine, ZPS_SHARD_PUBLISHED);
}

uint32_t zps_machine_count(const struct zps_shard_machine *machine, uint32_t rank, enum slot slot) {
  uint32_t n = 0;
  for (uint32_t part = 0; part < machine->n_parts; part++) n += *zps_machine_slot(machine, part, rank) == slot;
  return n;
}

bool zps_shard_machine_over(const struct zps_shard_machine *machine) {
  return machine->state == ZPS_SHARD_RETIRED || machine->state == ZPS_SHARD_ABORTED;
}

bool zps_shard_machine_wants_abort(const struct zps_shard_machine *machine, uint32_t rank) {
  return (machine->ranks[rank] & (RANK_PUSHED | RANK_DONE | RANK_GONE | RANK_IDLE | RANK_TAKEN)) == RANK_PUSHED;
}

bool zps_shard_machine_rank_gone(const struct zps_shard_machine *machine, uint32_t rank) {
  return machine->ranks[rank] & (RANK_GONE | RANK_IDLE);
}

bool zps_shard_machine_part_reduced(const struct zps_shard_machine *machine, uint32_t part) {
  return machine->part_reduced[part];
}

bool zps_shard_machine_gets_all(const struct zps_shard_machine *machine, uint32_t rank) {
  return (machine->ranks[rank] & (RANK_PUSHED | RANK_GONE | RANK_IDLE | RANK_APART | RANK_LATE)) == RANK_PUSHED;
}

/* It came late, and was told all sums. */
static bool was_told(const struct zps_shard_machine *machine, uint32_t rank) {
  return (machine->ranks[rank] & (RANK_GONE | RANK_APART | RANK_LATE | RANK_TAKEN)) == (RANK_LATE | RANK_TAKEN);
}

bool zps_shard_machine_reads(const struct zps_shard_machine *machine, uint32_t rank) {
  return machine->state == ZPS_SHARD_PUBLISHED && machine->n_remote > 0 &&
         (zps_shard_machine_gets_all(machine, rank) || was_told(machine, rank)) && !(machine->ranks[rank] & RANK_DONE);
}

bool zps_shard_machine_only_gives(const struct zps_shard_machine *machine, uint32_t rank) {
  return machine->ranks[rank] & RANK_APART;
}

bool zps_shard_machine_has_pulled(const struct zps_shard_machine *machine, uint32_t rank) {
  return machine->ranks[rank] & RANK_PULLED;
}

bool zps_shard_machine_keeps(const struct zps_shard_machine *machine) {
  return machine->is_kept || machine->n_awaited > 0 || machine->n_pulls > 0 || machine->n_late > 0;
}

bool zps_shard_machine_only_keeps(const struct zps_shard_machine *machine) {
  return machine->state == ZPS_SHARD_PUBLISHED && (machine->is_kept || machine->n_awaited > 0 || machine->n_late > 0) &&
         machine->n_pulls == 0 && (machine->n_reading == 0 || machine->n_remote == 0);
}

bool zps_shard_machine_has(const struct zps_shard_machine *machine, uint32_t rank, uint32_t part) {
  return *zps_machine_slot(machine, part, rank) != SLOT_NONE;
}

void zps_machine_act(struct zps_shard_machine_actions *actions, enum zps_shard_machine_action_type type, uint32_t rank,
                     uint32_t part) {
  actions->list[actions->n++] = (struct zps_shard_machine_action){.type = type, .rank = rank, .part = part};
}

static struct zps_frame_abort *begin_text(const struct zps_shard_machine *machine,
                                          struct zps_shard_machine_actions *actions, zps_err_t code) {
  struct zps_frame_abort *abort = &actions->abort;
  zps_frame_abort_init(abort);
  abort->step = machine->config.step;
  abort->code = code;
  zps_text_add(abort->text, sizeof abort->text, "job %s, tensor %s, step %" PRIu64 ": ", machine->config.job,
               machine->config.tensor, machine->config.step);
  return abort;
}

struct zps_frame_abort *zps_machine_abort(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions,
                                          zps_err_t code) {
  zps_machine_set_state(machine, ZPS_SHARD_ABORTED);
  zps_machine_act(actions, ZPS_SHARD_ABORT, ZPS_SHARD_NO_RANK, 0);
  return begin_text(machine, actions, code);
}

void zps_machine_name(struct zps_frame_abort *abort, uint32_t rank) {
  if (abort->n_ranks < ZPS_WIRE_RANKS_MAX) abort->ranks[abort->n_ranks++] = rank;
}

static void expire(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions) {
  enum { NAMED_MAX = 12 };
  struct zps_frame_abort *abort = zps_machine_abort(machine, actions, ZPS_ERR_MISSING);
  uint32_t n_missing = 0;
  for (uint32_t rank = 0; rank < machine->world; rank++) {
    const uint32_t n_none = zps_machine_count(machine, rank, SLOT_NONE);
    if (n_none == 0 || machine->is_closed || (machine->ranks[rank] & RANK_IDLE)) continue;
    if (n_missing == 0) zps_text_add(abort->text, sizeof abort->text, "the deadline passed without the push of rank");
    zps_machine_name(abort, rank);
    if (n_missing++ >= NAMED_MAX) continue;
    zps_text_add(abort->text, sizeof abort->text, "%s %u", n_missing > 1 ? "," : "", rank);
    if (n_none == machine->n_parts) continue;
    const char *before = " (partition ";
    for (uint32_t part = 0; part < machine->n_parts; part++) {
      if (*zps_machine_slot(machine, part, rank) != SLOT_NONE) continue;
      zps_text_add(abort->text, sizeof abort->text, "%s%u", before, machine->config.partitions[part]);
      before = " ";
    }
    zps_text_add(abort->text, sizeof abort->text, ")");
  }
  if (n_missing > NAMED_MAX) zps_text_add(abort->text, sizeof abort->text, " and %u more", n_missing - NAMED_MAX);
  if (n_missing > 0) {
    zps_text_add(abort->text, sizeof abort->text, " (%u of %u ranks are here)", machine->n_needed - n_missing,
                 machine->n_needed);
    return;
  }
  abort->code = ZPS_ERR_TIMEOUT;
  zps_text_add(abort->text, sizeof abort->text,
               "the deadline passed with %" PRIu64 " of %" PRIu64 " contributions read and %u of %u partitions summed",
               machine->n_here, (uint64_t)machine->n_needed * machine->n_parts, machine->n_reduced, machine->n_parts);
  uint32_t n_unread = 0; /* ranks that have announced theirs, and may be stopped, or cut off, since */
  for (uint32_t rank = 0; rank < machine->world; rank++) {
    if (machine->rank_here[rank] == machine->n_parts || (machine->ranks[rank] & (RANK_IDLE | RANK_LATE))) continue;
    zps_machine_name(abort, rank);
    if (n_unread++ < NAMED_MAX)
      zps_text_add(abort->text, sizeof abort->text, "%s %u", n_unread > 1 ? "," : "; not all are read of rank", rank);
  }
  if (n_unread > NAMED_MAX) zps_text_add(abort->text, sizeof abort->text, " and %u more", n_unread - NAMED_MAX);
}

/* ---- contributions ---- */

static void take_contribution(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                              struct zps_shard_machine_actions *actions) {
  const uint32_t part = event->part, rank = event->rank;
  *zps_machine_slot(machine, part, rank) = SLOT_HERE;
  machine->n_here++;
  machine->rank_here[rank]++;
  if ((machine->ranks[rank] & RANK_APART) && machine->rank_here[rank] == machine->n_parts) {
    machine->ranks[rank] |= RANK_TAKEN;
    zps_machine_act(actions, ZPS_SHARD_TAKEN, rank, 0);
  }
  if (machine->config.quorum > 0) {
    machine->n_full += machine->rank_here[rank] == machine->n_parts;
    zps_machine_close_if_due(machine, event->now_ns, actions);
    return;
  }
  if (++machine->part_here[part] == machine->n_needed)
    zps_machine_act(actions, ZPS_SHARD_REDUCE, ZPS_SHARD_NO_RANK, part);
  if (machine->n_here == (uint64_t)machine->n_needed * machine->n_parts)
    zps_machine_set_state(machine, ZPS_SHARD_REDUCING);
}

void zps_machine_retire(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions) {
  if (machine->state != ZPS_SHARD_PUBLISHED || (machine->n_reading > 0 && machine->n_remote > 0)) return;
  if (zps_shard_machine_keeps(machine)) return;
  zps_machine_set_state(machine, ZPS_SHARD_RETIRED);
  zps_machine_act(actions, ZPS_SHARD_RETIRE, ZPS_SHARD_NO_RANK, 0);
}

/* The rank, which is DONE or GONE, reads no sum any more. */
static void zps_machine_stop_reading(struct zps_shard_machine *machine, uint32_t rank, enum rank_flag why,
                                     struct zps_shard_machine_actions *actions) {
  if (!(machine->ranks[rank] & (RANK_DONE | RANK_GONE))) {
    if ((machine->ranks[rank] & (RANK_LATE | RANK_TAKEN)) == RANK_LATE)
      machine->n_late--;
    else if (!(machine->ranks[rank] & RANK_APART))
      machine->n_reading--;
    else if (!(machine->ranks[rank] & RANK_PULLED))
      machine->n_awaited--;
  }
  machine->ranks[rank] |= why;
  zps_machine_retire(machine, actions);
}

struct zps_frame_abort *zps_machine_refuse(struct zps_shard_machine *machine, uint32_t rank,
                                           struct zps_shard_machine_actions *actions, zps_err_t code) {
  zps_machine_act(actions, ZPS_SHARD_REFUSE, rank, 0);
  zps_machine_stop_reading(machine, rank, RANK_DONE, actions);
  return begin_text(machine, actions, code);
}

/* What the rank does is wrong. Nothing of a late rank goes into the sum, so that it is the only one to hear of it. */
static struct zps_frame_abort *zps_machine_blame(struct zps_shard_machine *machine, uint32_t rank,
                                                 struct zps_shard_machine_actions *actions, zps_err_t code) {
  return zps_shard_machine_is_late(machine, rank) ? zps_machine_refuse(machine, rank, actions, code)
                                                  : zps_machine_abort(machine, actions, code);
}

/* How the rank takes part: for all sums, or apart. False: it has said otherwise before. */
static bool note_push(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                      struct zps_shard_machine_actions *actions) {
  uint8_t *flags = &machine->ranks[event->rank];
  const bool is_first = !(*flags & RANK_PUSHED), was_apart = *flags & RANK_APART;
  if (is_first ? !event->is_apart && (*flags & RANK_PULLED) : event->is_apart != was_apart) {
    struct zps_frame_abort *abort = zps_machine_blame(machine, event->rank, actions, ZPS_ERR_PROTOCOL);
    zps_text_add(abort->text, sizeof abort->text, "rank %u asks for all sums with its push, and for some apart",
                 event->rank);
    zps_machine_name(abort, event->rank);
    return false;
  }
  if (is_first && event->is_apart) {
    *flags |= RANK_APART;
    if (!(*flags & RANK_LATE)) machine->n_reading--;
    if (!(*flags & (RANK_PULLED | RANK_LATE))) machine->n_awaited++;
  }
  *flags |= RANK_PUSHED;
  return true;
}

static void announced(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                      struct zps_shard_machine_actions *actions) {
  uint8_t *slot = zps_machine_slot(machine, event->part, event->rank);
  if (zps_shard_machine_is_too_late(machine, event->rank)) return;
  if (*slot != SLOT_NONE) {
    struct zps_frame_abort *abort = zps_machine_blame(machine, event->rank, actions, ZPS_ERR_PROTOCOL);
    zps_text_add(abort->text, sizeof abort->text, "rank %u pushed partition %u twice", event->rank,
                 machine->config.partitions[event->part]);
    zps_machine_name(abort, event->rank);
    return;
  }
  if (!note_push(machine, event, actions)) return;
  if (machine->ranks[event->rank] & RANK_LATE) {
    *slot = SLOT_LATE;
    return;
  }
  if (machine->config.quorum > 0 && !machine->has_push) machine->deadline_ns = ZPS_NEVER;
  machine->has_push = true;
  if (event->deadline_ns < machine->deadline_ns) machine->deadline_ns = event->deadline_ns;
  if (event->is_here) {
    take_contribution(machine, event, actions);
    return;
  }
  *slot = SLOT_ANNOUNCED;
  zps_machine_act(actions, ZPS_SHARD_READ, event->rank, event->part);
}

static void landed(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                   struct zps_shard_machine_actions *actions) {
  if (*zps_machine_slot(machine, event->part, event->rank) == SLOT_ANNOUNCED)
    take_contribution(machine, event, actions);
}

static void reduced(struct zps_shard_machine *machine, uint32_t part, bool is_here,
                    struct zps_shard_machine_actions *actions) {
  const bool is_due = machine->config.quorum > 0 ? machine->is_closed : machine->part_here[part] == machine->n_needed;
  if (machine->part_reduced[part] || !is_due) return;
  machine->part_reduced[part] = 1;
  machine->n_remote += !is_here;
  zps_machine_act(actions, ZPS_SHARD_PUBLISH, ZPS_SHARD_NO_RANK, part);
  if (++machine->n_reduced == machine->n_parts) zps_machine_set_state(machine, ZPS_SHARD_PUBLISHED);
  zps_machine_retire(machine, actions);
}

static void pull(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event) {
  uint8_t *flags = &machine->ranks[event->rank];
  if ((*flags & RANK_APART) && !(*flags & (RANK_PULLED | RANK_DONE))) machine->n_awaited--;
  if (!event->may_repeat || (*flags & RANK_APART)) *flags |= RANK_PULLED;
  machine->n_pulls++;
  if (event->deadline_ns < machine->deadline_ns) machine->deadline_ns = event->deadline_ns;
}

static void pulled(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions) {
  machine->n_pulls--;
  zps_machine_retire(machine, actions);
}

static void forget(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions) {
  for (uint32_t rank = 0; rank < machine->world; rank++)
    if ((machine->ranks[rank] & RANK_APART) || (machine->ranks[rank] & (RANK_LATE | RANK_TAKEN)) == RANK_LATE)
      machine->ranks[rank] |= RANK_DONE;
  machine->n_awaited = machine->n_late = 0;
  machine->is_kept = false;
  zps_machine_retire(machine, actions);
}

/* A rank that pulls has nothing to read but by its pull, which ends by itself; one that gave apart and has not pulled
 * says by it that it will not, maybe before the sums are there. */
static void done(struct zps_shard_machine *machine, uint32_t rank, struct zps_shard_machine_actions *actions) {
  if (machine->ranks[rank] & RANK_PULLED) return;
  if ((machine->ranks[rank] & RANK_APART) || machine->state == ZPS_SHARD_PUBLISHED) {
    zps_machine_stop_reading(machine, rank, RANK_DONE, actions);
    return;
  }
  struct zps_frame_abort *abort = zps_machine_blame(machine, rank, actions, ZPS_ERR_PROTOCOL);
  zps_text_add(abort->text, sizeof abort->text,
               "rank %u says that it has read the results, but only %u of %u partitions are published", rank,
               machine->n_reduced, machine->n_parts);
  zps_machine_name(abort, rank);
}

static void name_blamed(struct zps_frame_abort *abort, const struct zps_shard_machine_event *event) {
  for (uint32_t i = 0; i < event->n_blamed; i++) zps_machine_name(abort, event->blamed[i]);
  if (event->n_blamed == 0) zps_machine_name(abort, event->rank);
}

static void gone(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                 struct zps_shard_machine_actions *actions) {
  const bool is_late = zps_shard_machine_is_late(machine, event->rank);
  if (is_late || zps_machine_count(machine, event->rank, SLOT_HERE) == machine->n_parts) {
    zps_machine_stop_reading(machine, event->rank, RANK_GONE, actions);
    return;
  }
  /* A rank that left may have the sum of a lost server. No other sum may come beside it. */
  if (!event->may_have_sum && zps_machine_leave_out(machine, event->rank, RANK_GONE, event->now_ns, actions)) return;
  machine->ranks[event->rank] |= RANK_GONE;
  struct zps_frame_abort *abort = zps_machine_abort(machine, actions, event->code);
  zps_text_add(abort->text, sizeof abort->text, "rank %u is needed and gone: %s", event->rank, event->text);
  name_blamed(abort, event);
}

static void cancel(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                   struct zps_shard_machine_actions *actions) {
  const bool is_late = zps_shard_machine_is_late(machine, event->rank);
  if (machine->state == ZPS_SHARD_PUBLISHED || machine->is_closed || is_late) { /* the others have all they need */
    zps_machine_stop_reading(machine, event->rank, RANK_DONE, actions);
    return;
  }
  /* After the loss of a server the rank may have a sum already, with its contribution in it. */
  if (event->code != ZPS_ERR_SERVER_LOST &&
      zps_machine_leave_out(machine, event->rank, RANK_DONE, event->now_ns, actions))
    return;
  struct zps_frame_abort *abort = zps_machine_abort(machine, actions, event->code);
  zps_text_add(abort->text, sizeof abort->text, "rank %u gave it up: %s", event->rank, event->text);
  name_blamed(abort, event);
}

static void fail(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                 struct zps_shard_machine_actions *actions) {
  struct zps_frame_abort *abort = event->rank != ZPS_SHARD_NO_RANK
                                      ? zps_machine_blame(machine, event->rank, actions, event->code)
                                      : zps_machine_abort(machine, actions, event->code);
  if (event->rank != ZPS_SHARD_NO_RANK) {
    zps_text_add(abort->text, sizeof abort->text, "rank %u: ", event->rank);
    zps_machine_name(abort, event->rank);
  }
  for (uint32_t i = 0; i < event->n_blamed; i++) zps_machine_name(abort, event->blamed[i]);
  zps_text_add(abort->text, sizeof abort->text, "%s", event->text);
}

void zps_shard_machine_step(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                            struct zps_shard_machine_actions *actions) {
  actions->n = 0;
  if (zps_shard_machine_over(machine)) return;
  const bool is_of_rank = event->type == ZPS_SHARD_ANNOUNCED || event->type == ZPS_SHARD_LANDED ||
                          event->type == ZPS_SHARD_DONE || event->type == ZPS_SHARD_GONE ||
                          event->type == ZPS_SHARD_CANCEL || event->type == ZPS_SHARD_PULL ||
                          event->type == ZPS_SHARD_DECIDED || event->type == ZPS_SHARD_NOTIFIED;
  if (is_of_rank && zps_shard_machine_rank_gone(machine, event->rank)) return;
  switch (event->type) {
    case ZPS_SHARD_ANNOUNCED:
      announced(machine, event, actions);
      break;
    case ZPS_SHARD_LANDED:
      landed(machine, event, actions);
      break;
    case ZPS_SHARD_REDUCED:
      reduced(machine, event->part, event->is_here, actions);
      break;
    case ZPS_SHARD_DONE:
      done(machine, event->rank, actions);
      break;
    case ZPS_SHARD_GONE:
      gone(machine, event, actions);
      break;
    case ZPS_SHARD_CANCEL:
      cancel(machine, event, actions);
      break;
    case ZPS_SHARD_PULL:
      pull(machine, event);
      break;
    case ZPS_SHARD_PULLED:
      pulled(machine, actions);
      break;
    case ZPS_SHARD_FORGET:
      forget(machine, actions);
      break;
    case ZPS_SHARD_FAIL:
      fail(machine, event, actions);
      break;
    case ZPS_SHARD_DECIDED:
      zps_machine_decided(machine, event, actions);
      break;
    case ZPS_SHARD_NOTIFIED:
      zps_machine_notified(machine, event->rank, actions);
      break;
    case ZPS_SHARD_TICK:
      zps_machine_close_if_due(machine, event->now_ns, actions);
      if (machine->state < ZPS_SHARD_PUBLISHED && event->now_ns >= machine->deadline_ns) expire(machine, actions);
      break;
  }
}
