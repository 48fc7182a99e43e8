#include "common/session/early.h"

#include <stdlib.h>
#include <string.h>

void zps_early_fini(struct zps_early *early) {
  for (unsigned i = 0; i < ZPS_EARLY_MAX; i++) free(early->messages[i]);
  *early = (struct zps_early){0};
}

bool zps_early_put(struct zps_early *early, uint64_t seq, const void *bytes, size_t len) {
  struct zps_early_message **const slot = &early->messages[seq % ZPS_EARLY_MAX];
  struct zps_early_message *const message = *slot ? NULL : malloc(sizeof *message + len);
  if (!message) return false;
  message->seq = seq;
  message->len = len;
  memcpy(message->bytes, bytes, len);
  *slot = message;
  early->n++;
  return true;
}

uint32_t zps_early_bits(const struct zps_early *early, uint64_t expects) {
  uint32_t bits = 0;
  for (unsigned i = 0; early->n > 0 && i < ZPS_EARLY_MAX - 1; i++) {
    const uint64_t seq = expects + 1 + i;
    const struct zps_early_message *const message = early->messages[seq % ZPS_EARLY_MAX];
    if (message && message->seq == seq) bits |= 1u << i;
  }
  return bits;
}

struct zps_early_message *zps_early_take(struct zps_early *early, uint64_t seq) {
  struct zps_early_message **const slot = &early->messages[seq % ZPS_EARLY_MAX];
  struct zps_early_message *const message = *slot;
  if (early->n == 0 || !message || message->seq != seq) return NULL;
  *slot = NULL;
  early->n--;
  return message;
}
