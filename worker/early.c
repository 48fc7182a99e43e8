#define ZPS_LOG_COMPONENT "exchange"
#include "worker/early.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

struct zps_early_message *zps_early_copy(uint32_t src, const struct zps_slice *slice) {
  const size_t len = slice->is_inline ? (size_t)slice->len_bytes : 0;
  struct zps_early_message *message = malloc(sizeof *message + len);
  if (!message) return NULL;
  *message = (struct zps_early_message){.src = src, .slice = *slice};
  message->slice.data = message + 1;
  if (len > 0) memcpy(message + 1, slice->data, len);
  return message;
}

static uint64_t cost_of(const struct zps_early_message *message) {
  return sizeof *message + (message->slice.is_inline ? message->slice.len_bytes : 0);
}

void zps_early_round_free(struct zps_early_round *round) {
  if (!round) return;
  for (struct zps_early_message *message = round->messages, *next; message; message = next) {
    next = message->next;
    free(message);
  }
  for (struct zps_early_abort *abort = round->aborts, *next; abort; abort = next) {
    next = abort->next;
    free(abort);
  }
  free(round);
}

static struct zps_early_round *unlink_at(struct zps_early *early, struct zps_early_round **at) {
  struct zps_early_round *round = *at;
  *at = round->next;
  early->n_rounds--;
  early->bytes -= round->bytes;
  return round;
}

void zps_early_fini(struct zps_early *early) {
  while (early->rounds) zps_early_round_free(unlink_at(early, &early->rounds));
  *early = (struct zps_early){0};
}

static struct zps_early_round **find(struct zps_early *early, uint32_t tensor, uint64_t step) {
  struct zps_early_round **at = &early->rounds;
  while (*at && ((*at)->tensor != tensor || (*at)->step != step)) at = &(*at)->next;
  return at;
}

static struct zps_early_round *get(struct zps_early *early, uint32_t tensor, uint64_t step) {
  struct zps_early_round **at = find(early, tensor, step);
  if (*at) return *at;
  if (early->n_rounds >= ZPS_EARLY_ROUNDS_MAX) {
    struct zps_early_round *oldest = unlink_at(early, &early->rounds);
    zps_log_warn_limited("dropped what came of tensor %u step %llu: it has not begun here, and %u later rounds neither",
                         oldest->tensor, (unsigned long long)oldest->step, ZPS_EARLY_ROUNDS_MAX);
    zps_early_round_free(oldest);
    at = find(early, tensor, step);
  }
  struct zps_early_round *round = calloc(1, sizeof *round);
  if (!round) return NULL;
  round->tensor = tensor;
  round->step = step;
  round->tail = &round->messages;
  *at = round;
  early->n_rounds++;
  return round;
}

/* In the place of the oldest, if there are too many. */
static void note_missed(struct zps_early *early, uint32_t tensor, uint64_t step) {
  const unsigned at = early->n_missed++ % ZPS_MISSED_ROUNDS;
  early->missed[at].tensor = tensor;
  early->missed[at].step = step;
}

static bool take_missed(struct zps_early *early, uint32_t tensor, uint64_t step) {
  const unsigned n = early->n_missed < ZPS_MISSED_ROUNDS ? early->n_missed : ZPS_MISSED_ROUNDS;
  bool missed = false;
  for (unsigned i = 0; i < n; i++) {
    if (early->missed[i].tensor != tensor || early->missed[i].step != step) continue;
    early->missed[i].tensor = UINT32_MAX; /* of no tensor: its next attempt may go well */
    missed = true;
  }
  return missed;
}

void zps_early_add(struct zps_early *early, uint32_t tensor, uint64_t step, uint32_t src, uint32_t frame_bytes,
                   const struct zps_slice *slice) {
  struct zps_early_round *round = get(early, tensor, step);
  struct zps_early_message *message = NULL;
  if (round && early->bytes < ZPS_EARLY_BYTES_MAX) message = zps_early_copy(src, slice);
  if (!message) {
    zps_log_warn_limited("dropped a message of rank %u for tensor %u step %llu, which has not begun here: no memory",
                         src, tensor, (unsigned long long)step);
    if (round)
      round->overflown = true;
    else
      note_missed(early, tensor, step);
    return;
  }
  message->frame_bytes = frame_bytes;
  *round->tail = message;
  round->tail = &message->next;
  round->bytes += cost_of(message);
  early->bytes += cost_of(message);
}

/* What the rank has sent before it gave up is of no use any more. */
static void drop_messages(struct zps_early *early, struct zps_early_round *round, uint32_t src) {
  struct zps_early_message **at = &round->messages;
  while (*at) {
    struct zps_early_message *message = *at;
    if (message->src != src) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    round->bytes -= cost_of(message);
    early->bytes -= cost_of(message);
    free(message);
  }
  round->tail = at;
}

void zps_early_abort(struct zps_early *early, uint32_t src, const struct zps_frame_abort *abort) {
  struct zps_early_round *round = get(early, abort->tensor, abort->step);
  if (!round) {
    note_missed(early, abort->tensor, abort->step);
    return;
  }
  drop_messages(early, round, src);
  struct zps_early_abort *known = round->aborts;
  while (known && known->src != src) known = known->next;
  if (!known) {
    known = calloc(1, sizeof *known);
    if (!known) {
      round->overflown = true; /* the round must not wait for that rank */
      return;
    }
    known->next = round->aborts;
    round->aborts = known;
  }
  known->src = src;
  known->abort = *abort;
}

struct zps_early_round *zps_early_take(struct zps_early *early, uint32_t tensor, uint64_t step, bool *dropped_p) {
  struct zps_early_round **at = find(early, tensor, step), *round = *at ? unlink_at(early, at) : NULL;
  *dropped_p = take_missed(early, tensor, step) || (round && round->overflown);
  return round;
}

void zps_early_note_past(struct zps_early *early, uint32_t tensor, uint64_t step) {
  const unsigned at = early->n_past++ % ZPS_PAST_ROUNDS;
  early->past[at].tensor = tensor;
  early->past[at].step = step;
}

bool zps_early_is_past(const struct zps_early *early, uint32_t tensor, uint64_t step) {
  const unsigned n = early->n_past < ZPS_PAST_ROUNDS ? early->n_past : ZPS_PAST_ROUNDS;
  for (unsigned i = 0; i < n; i++)
    if (early->past[i].tensor == tensor && early->past[i].step == step) return true;
  return false;
}
