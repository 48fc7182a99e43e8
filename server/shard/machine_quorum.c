/* The rules of rounds with a quorum: when a round closes, and the ranks that are late. */
#include "common/base/clock.h"
#include "common/base/text.h"
#include "server/shard/machine_impl.h"

/* ---- questions ---- */

bool zps_shard_machine_is_late(const struct zps_shard_machine *machine, uint32_t rank) {
  return machine->ranks[rank] & RANK_LATE;
}

bool zps_shard_machine_is_too_late(const struct zps_shard_machine *machine, uint32_t rank) {
  return (machine->ranks[rank] & RANK_LATE) && (machine->ranks[rank] & (RANK_DONE | RANK_GONE));
}

bool zps_shard_machine_awaits(const struct zps_shard_machine *machine, uint32_t rank) {
  return (machine->ranks[rank] & (RANK_PUSHED | RANK_DONE | RANK_GONE | RANK_LATE | RANK_TAKEN)) ==
             (RANK_PUSHED | RANK_LATE) &&
         zps_machine_count(machine, rank, SLOT_NONE) == 0;
}

uint32_t zps_shard_machine_count_late(const struct zps_shard_machine *machine) {
  uint32_t n = 0;
  for (uint32_t rank = 0; rank < machine->world; rank++) n += zps_shard_machine_is_late(machine, rank);
  return n;
}

/* ---- closing ---- */

static void expect_no_more(struct zps_shard_machine *machine, uint32_t rank) {
  const uint8_t *const flags = &machine->ranks[rank];
  if (*flags & (RANK_DONE | RANK_GONE)) return;
  if (!(*flags & RANK_APART))
    machine->n_reading--;
  else if (!(*flags & RANK_PULLED))
    machine->n_awaited--;
}

/* The sum will be made without it. */
static void forget_contribution(struct zps_shard_machine *machine, uint32_t rank) {
  machine->n_full -= machine->rank_here[rank] == machine->n_parts;
  machine->n_here -= machine->rank_here[rank];
  machine->rank_here[rank] = 0;
  machine->n_out++;
}

/* From now on the rank is late. What it has announced is as good as announced too late. */
static void be_late(struct zps_shard_machine *machine, uint32_t rank) {
  expect_no_more(machine, rank);
  machine->n_late += !(machine->ranks[rank] & (RANK_DONE | RANK_GONE));
  machine->ranks[rank] = (uint8_t)((machine->ranks[rank] & ~RANK_TAKEN) | RANK_LATE);
  for (uint32_t part = 0; part < machine->n_parts; part++) {
    uint8_t *const slot = zps_machine_slot(machine, part, rank);
    if (*slot != SLOT_NONE) *slot = SLOT_LATE;
  }
}

/* The round waits for no rank from here on, but for memory it may. The caller sets another deadline. */
static void close_round(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions) {
  for (uint32_t rank = 0; rank < machine->world; rank++) {
    if ((machine->ranks[rank] & (RANK_IDLE | RANK_LATE)) || machine->rank_here[rank] == machine->n_parts) continue;
    be_late(machine, rank);
  }
  machine->is_closed = true;
  machine->close_ns = machine->deadline_ns = ZPS_NEVER;
  zps_machine_act(actions, ZPS_SHARD_CLOSE, ZPS_SHARD_NO_RANK, 0);
  zps_machine_set_state(machine, ZPS_SHARD_REDUCING);
}

void zps_machine_close_if_due(struct zps_shard_machine *machine, uint64_t now_ns,
                              struct zps_shard_machine_actions *actions) {
  if (machine->is_closed || machine->config.quorum == 0) return;
  if (machine->n_full + machine->n_out == machine->n_needed) {
    close_round(machine, actions);
    return;
  }
  if (machine->is_decided || machine->n_full < machine->config.quorum) return;
  if (machine->is_unsure && now_ns < machine->deadline_ns) return;
  if (machine->close_ns == ZPS_NEVER)
    machine->close_ns =
        machine->config.grace_ns < ZPS_NEVER - now_ns ? now_ns + machine->config.grace_ns : ZPS_NEVER - 1;
  if (now_ns >= machine->close_ns || now_ns >= machine->deadline_ns) close_round(machine, actions);
}

bool zps_machine_leave_out(struct zps_shard_machine *machine, uint32_t rank, enum rank_flag why, uint64_t now_ns,
                           struct zps_shard_machine_actions *actions) {
  if (machine->config.quorum == 0 || machine->is_decided ||
      machine->n_out + machine->config.quorum >= machine->n_needed)
    return false;
  forget_contribution(machine, rank);
  be_late(machine, rank);
  machine->n_late--;
  machine->ranks[rank] |= why;
  if (machine->n_full < machine->config.quorum) machine->close_ns = ZPS_NEVER;
  zps_machine_act(actions, ZPS_SHARD_DROP, rank, 0);
  zps_machine_close_if_due(machine, now_ns, actions);
  return true;
}

/* ---- after it is closed, or decided ---- */

/* A late rank was told all sums, or, where it only gives, that there is nothing more to give. */
void zps_machine_notified(struct zps_shard_machine *machine, uint32_t rank, struct zps_shard_machine_actions *actions) {
  if (!zps_shard_machine_awaits(machine, rank)) return;
  machine->n_late--;
  *((machine->ranks[rank] & RANK_APART) ? &machine->n_awaited : &machine->n_reading) += 1;
  machine->ranks[rank] |= RANK_TAKEN;
  zps_machine_retire(machine, actions);
}

static bool is_in(const uint8_t *bits, uint32_t rank) {
  return bits[rank / 8] >> rank % 8 & 1;
}

/* An earlier epoch has decided, and all ranks that know say the same. */
void zps_machine_decided(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                         struct zps_shard_machine_actions *actions) {
  bool agrees = machine->config.quorum > 0;
  uint32_t missing = ZPS_SHARD_NO_RANK, n_in = 0;
  for (uint32_t rank = 0; rank < machine->world; rank++) {
    const bool is_late = is_in(event->late, rank);
    n_in += !is_late && !(machine->ranks[rank] & RANK_IDLE);
    if (machine->ranks[rank] & RANK_IDLE)
      agrees &= !is_late;
    else if (machine->is_decided || machine->is_closed)
      agrees &= is_late == zps_shard_machine_is_late(machine, rank);
    else if (!is_late && zps_shard_machine_is_late(machine, rank))
      missing = rank;
  }
  agrees &= n_in >= machine->config.quorum;
  if (!agrees || missing != ZPS_SHARD_NO_RANK) {
    const zps_err_t code = agrees ? ZPS_ERR_SERVER_LOST : ZPS_ERR_PROTOCOL;
    struct zps_frame_abort *abort = machine->is_closed ? zps_machine_refuse(machine, event->rank, actions, code)
                                                       : zps_machine_abort(machine, actions, code);
    zps_text_add(abort->text, sizeof abort->text,
                 agrees ? "a server was lost, and rank %u does not push again"
                        : "rank %u and others differ in the ranks that are late",
                 agrees ? missing : event->rank);
    zps_machine_name(abort, agrees ? missing : event->rank);
    return;
  }
  if (machine->is_decided || machine->is_closed) return;
  machine->is_decided = true;
  machine->close_ns = ZPS_NEVER;
  for (uint32_t rank = 0; rank < machine->world; rank++) {
    if (!is_in(event->late, rank) || (machine->ranks[rank] & RANK_LATE)) continue;
    forget_contribution(machine, rank);
    be_late(machine, rank);
  }
  zps_machine_close_if_due(machine, 0, actions);
}
