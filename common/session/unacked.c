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
  unacked->n++;
  return ZPS_OK;
}

void zps_unacked_confirm(struct zps_unacked *unacked, uint64_t seq) {
  while (unacked->n > 0 && at(unacked, 0)->seq + at(unacked, 0)->n_frames <= seq) {
    unacked->first = (unacked->first + 1) % ZPS_UNACKED_MAX;
    unacked->n--;
    if (unacked->n_sent > 0) unacked->n_sent--;
  }
}

const struct zps_unacked_message *zps_unacked_next(const struct zps_unacked *unacked) {
  return unacked->n_sent < unacked->n ? &unacked->messages[(unacked->first + unacked->n_sent) % ZPS_UNACKED_MAX] : NULL;
}

void zps_unacked_sent(struct zps_unacked *unacked) {
  unacked->n_sent++;
}

unsigned zps_unacked_rewind(struct zps_unacked *unacked) {
  const unsigned n = unacked->n_sent;
  unacked->n_sent = 0;
  return n;
}
