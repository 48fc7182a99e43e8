#include "common/session/unacked.h"

#include <stdlib.h>
#include <string.h>

enum { CAP_STEP = 256 };

void zps_unacked_fini(struct zps_unacked *unacked) {
  for (unsigned i = 0; i < ZPS_UNACKED_MAX; i++) free(unacked->messages[i].bytes);
  *unacked = (struct zps_unacked){0};
}

static struct zps_unacked_message *at(struct zps_unacked *unacked, unsigned i) {
  return &unacked->messages[(unacked->first + i) % ZPS_UNACKED_MAX];
}

zps_err_t zps_unacked_add(struct zps_unacked *unacked, uint64_t seq, unsigned n_frames, const void *bytes, size_t len) {
  struct zps_unacked_message *const message = at(unacked, unacked->n);
  if (len > message->cap) {
    const size_t cap = (len + CAP_STEP - 1) / CAP_STEP * CAP_STEP;
    uint8_t *const grown = realloc(message->bytes, cap);
    if (!grown) return ZPS_ERR_NOMEM;
    message->bytes = grown;
    message->cap = cap;
  }
  memcpy(message->bytes, bytes, len);
  message->seq = seq;
  message->n_frames = n_frames;
  message->len = len;
  message->has_left = false;
  unacked->n++;
  return ZPS_OK;
}

static void skip_those_that_left(struct zps_unacked *unacked) {
  while (unacked->next < unacked->n && at(unacked, unacked->next)->has_left) unacked->next++;
}

void zps_unacked_confirm(struct zps_unacked *unacked, uint64_t seq) {
  while (unacked->n > 0 && at(unacked, 0)->seq + at(unacked, 0)->n_frames <= seq) {
    unacked->first = (unacked->first + 1) % ZPS_UNACKED_MAX;
    unacked->n--;
    if (unacked->next > 0) unacked->next--;
  }
  skip_those_that_left(unacked);
}

const struct zps_unacked_message *zps_unacked_next(const struct zps_unacked *unacked) {
  return unacked->next < unacked->n ? &unacked->messages[(unacked->first + unacked->next) % ZPS_UNACKED_MAX] : NULL;
}

void zps_unacked_sent(struct zps_unacked *unacked) {
  at(unacked, unacked->next)->has_left = true;
  skip_those_that_left(unacked);
}

uint64_t zps_unacked_oldest(const struct zps_unacked *unacked, uint64_t none) {
  return unacked->n > 0 ? unacked->messages[unacked->first].seq : none;
}

bool zps_unacked_begins(const struct zps_unacked *unacked, uint64_t seq) {
  for (unsigned i = 0; i < unacked->n; i++)
    if (unacked->messages[(unacked->first + i) % ZPS_UNACKED_MAX].seq == seq) return true;
  return false;
}

static bool is_early(uint64_t seq, uint64_t expects, uint32_t early) {
  return seq > expects && seq - expects <= 32 && (early >> (seq - expects - 1) & 1);
}

unsigned zps_unacked_lose(struct zps_unacked *unacked, uint64_t expects, uint32_t early, uint64_t until) {
  unsigned n = 0;
  for (unsigned i = 0; i < unacked->n; i++) {
    struct zps_unacked_message *const message = at(unacked, i);
    if (!message->has_left || message->seq < expects || message->seq >= until) continue;
    if (is_early(message->seq, expects, early)) continue;
    message->has_left = false;
    n++;
  }
  unacked->next = 0;
  skip_those_that_left(unacked);
  return n;
}
