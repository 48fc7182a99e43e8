#define ZPS_LOG_COMPONENT "exchange"
#include "worker/plane/unexpected.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

struct zps_unexpected_message *zps_unexpected_copy(uint32_t src, const struct zps_slice *slice) {
  const size_t len = slice->is_inline ? (size_t)slice->len_bytes : 0;
  struct zps_unexpected_message *message = malloc(sizeof *message + len);
  if (!message) return NULL;
  *message = (struct zps_unexpected_message){.src = src, .slice = *slice};
  message->slice.data = message + 1;
  if (len > 0) memcpy(message + 1, slice->data, len);
  return message;
}

uint64_t zps_unexpected_cost(const struct zps_unexpected_message *message) {
  return sizeof *message + (message->slice.is_inline ? message->slice.len_bytes : 0);
}

void zps_unexpected_round_free(struct zps_unexpected_round *round) {
  if (!round) return;
  for (struct zps_unexpected_message *message = round->messages, *next; message; message = next) {
    next = message->next;
    free(message);
  }
  for (struct zps_unexpected_abort *abort = round->aborts, *next; abort; abort = next) {
    next = abort->next;
    free(abort);
  }
  free(round);
}

static struct zps_unexpected_round *unlink_at(struct zps_unexpected *unexpected, struct zps_unexpected_round **at) {
  struct zps_unexpected_round *round = *at;
  *at = round->next;
  unexpected->n_rounds--;
  unexpected->bytes -= round->bytes;
  return round;
}

void zps_unexpected_fini(struct zps_unexpected *unexpected) {
  while (unexpected->rounds) zps_unexpected_round_free(unlink_at(unexpected, &unexpected->rounds));
  *unexpected = (struct zps_unexpected){0};
}

static struct zps_unexpected_round **find(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step) {
  struct zps_unexpected_round **at = &unexpected->rounds;
  while (*at && ((*at)->tensor != tensor || (*at)->step != step)) at = &(*at)->next;
  return at;
}

/* Replaces the oldest entry, if there are too many. */
static void note_missed(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step) {
  const unsigned at = unexpected->n_missed++ % ZPS_MISSED_ROUNDS;
  unexpected->missed[at].tensor = tensor;
  unexpected->missed[at].step = step;
}

static struct zps_unexpected_round *get(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step) {
  struct zps_unexpected_round **at = find(unexpected, tensor, step);
  if (*at) return *at;
  if (unexpected->n_rounds >= ZPS_UNEXPECTED_ROUNDS_MAX) {
    struct zps_unexpected_round *oldest = unlink_at(unexpected, &unexpected->rounds);
    zps_log_warn_limited(
        "dropped messages for tensor %u step %llu: messages wait for %u rounds that have not begun here, the most "
        "there may be",
        oldest->tensor, (unsigned long long)oldest->step, ZPS_UNEXPECTED_ROUNDS_MAX);
    note_missed(unexpected, oldest->tensor, oldest->step);
    zps_unexpected_round_free(oldest);
    at = find(unexpected, tensor, step);
  }
  struct zps_unexpected_round *round = calloc(1, sizeof *round);
  if (!round) return NULL;
  round->tensor = tensor;
  round->step = step;
  round->tail = &round->messages;
  *at = round;
  unexpected->n_rounds++;
  return round;
}

static bool take_missed(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step) {
  const unsigned n = unexpected->n_missed < ZPS_MISSED_ROUNDS ? unexpected->n_missed : ZPS_MISSED_ROUNDS;
  bool missed = false;
  for (unsigned i = 0; i < n; i++) {
    if (unexpected->missed[i].tensor != tensor || unexpected->missed[i].step != step) continue;
    unexpected->missed[i].tensor = UINT32_MAX; /* of no tensor: its next attempt may go well */
    missed = true;
  }
  return missed;
}

void zps_unexpected_add(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step, uint32_t src,
                        uint32_t frame_bytes, const struct zps_slice *slice) {
  struct zps_unexpected_round *round = get(unexpected, tensor, step);
  struct zps_unexpected_message *message = NULL;
  if (round && unexpected->bytes < ZPS_UNEXPECTED_BYTES_MAX) message = zps_unexpected_copy(src, slice);
  if (!message) {
    zps_log_warn_limited("dropped a message of rank %u for tensor %u step %llu, which has not begun here: no memory",
                         src, tensor, (unsigned long long)step);
    if (round)
      round->overflown = true;
    else
      note_missed(unexpected, tensor, step);
    return;
  }
  message->frame_bytes = frame_bytes;
  *round->tail = message;
  round->tail = &message->next;
  round->bytes += zps_unexpected_cost(message);
  unexpected->bytes += zps_unexpected_cost(message);
}

/* Messages that the rank sent before it gave up are of no use any more. */
static void drop_messages(struct zps_unexpected *unexpected, struct zps_unexpected_round *round, uint32_t src) {
  struct zps_unexpected_message **at = &round->messages;
  while (*at) {
    struct zps_unexpected_message *message = *at;
    if (message->src != src) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    round->bytes -= zps_unexpected_cost(message);
    unexpected->bytes -= zps_unexpected_cost(message);
    free(message);
  }
  round->tail = at;
}

void zps_unexpected_abort(struct zps_unexpected *unexpected, uint32_t src, const struct zps_frame_abort *abort) {
  struct zps_unexpected_round *round = get(unexpected, abort->tensor, abort->step);
  if (!round) {
    note_missed(unexpected, abort->tensor, abort->step);
    return;
  }
  drop_messages(unexpected, round, src);
  struct zps_unexpected_abort *known = round->aborts;
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

struct zps_unexpected_round *zps_unexpected_take(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step,
                                                 bool *dropped_p) {
  struct zps_unexpected_round **at = find(unexpected, tensor, step), *round = *at ? unlink_at(unexpected, at) : NULL;
  *dropped_p = take_missed(unexpected, tensor, step) || (round && round->overflown);
  return round;
}

void zps_unexpected_note_past(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step) {
  const unsigned at = unexpected->n_past++ % ZPS_PAST_ROUNDS;
  unexpected->past[at].tensor = tensor;
  unexpected->past[at].step = step;
}

bool zps_unexpected_is_past(const struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step) {
  const unsigned n = unexpected->n_past < ZPS_PAST_ROUNDS ? unexpected->n_past : ZPS_PAST_ROUNDS;
  for (unsigned i = 0; i < n; i++)
    if (unexpected->past[i].tensor == tensor && unexpected->past[i].step == step) return true;
  return false;
}
