#include "tests/support/fabrics/loop_port.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

enum { INBOX_SLACK = 1024 }; /* messages an inbox takes beyond the posted receives */

struct zps_loop_region {
  struct zps_loop_region *next;
  uint64_t key;
  const uint8_t *base;
  size_t len;
};

struct cut {
  struct cut *next;
  uint64_t src;
  bool is_told;
};

struct zps_loop_port {
  uint64_t id;
  /* Under the registry's lock. */
  unsigned refs; /* the owner and every peer handle that names this port */
  struct zps_loop_port *next_open;
  /* Under `lock`, which is never held while another port's is taken. */
  pthread_mutex_t lock;
  pthread_cond_t ready;
  struct zps_loop_message *inbox, **inbox_tail;
  size_t n_inbox; /* with the one being handled */
  size_t n_receives;
  struct zps_loop_region *regions;
  struct cut *cuts; /* cuts that the owner has not taken yet */
  uint64_t unmatched;
  bool woken, closed;
};

static struct {
  pthread_mutex_t lock;
  struct zps_loop_port *open;
  uint64_t last_id, last_key;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

zps_err_t zps_loop_port_open(size_t n_receives, struct zps_loop_port **port_p) {
  struct zps_loop_port *port = calloc(1, sizeof *port);
  if (!port) return ZPS_ERR_NOMEM;
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&port->ready, &attr);
  pthread_condattr_destroy(&attr);
  pthread_mutex_init(&port->lock, NULL);
  port->inbox_tail = &port->inbox;
  port->n_receives = n_receives;
  port->refs = 1;
  pthread_mutex_lock(&registry.lock);
  port->id = ++registry.last_id;
  port->next_open = registry.open;
  registry.open = port;
  pthread_mutex_unlock(&registry.lock);
  *port_p = port;
  return ZPS_OK;
}

uint64_t zps_loop_port_id(const struct zps_loop_port *port) {
  return port->id;
}

struct zps_loop_port *zps_loop_port_find(uint64_t id) {
  pthread_mutex_lock(&registry.lock);
  struct zps_loop_port *found = registry.open;
  while (found && found->id != id) found = found->next_open;
  if (found) found->refs++;
  pthread_mutex_unlock(&registry.lock);
  return found;
}

void zps_loop_port_unref(struct zps_loop_port *port) {
  if (!port) return;
  pthread_mutex_lock(&registry.lock);
  const bool last = --port->refs == 0;
  pthread_mutex_unlock(&registry.lock);
  if (!last) return;
  for (struct zps_loop_region *region = port->regions, *next; region; region = next) {
    next = region->next;
    free(region);
  }
  for (struct cut *cut = port->cuts, *next; cut; cut = next) {
    next = cut->next;
    free(cut);
  }
  pthread_cond_destroy(&port->ready);
  pthread_mutex_destroy(&port->lock);
  free(port);
}

void zps_loop_port_close(struct zps_loop_port *port) {
  pthread_mutex_lock(&registry.lock);
  struct zps_loop_port **link = &registry.open;
  while (*link != port) link = &(*link)->next_open;
  *link = port->next_open;
  pthread_mutex_unlock(&registry.lock);
  pthread_mutex_lock(&port->lock);
  port->closed = true;
  for (struct zps_loop_message *message; (message = port->inbox) != NULL;) {
    port->inbox = message->next;
    free(message);
  }
  pthread_mutex_unlock(&port->lock);
}

zps_err_t zps_loop_port_reserve(struct zps_loop_port *port, int count) {
  zps_err_t code = ZPS_OK;
  pthread_mutex_lock(&port->lock);
  if (count < 0 && port->n_receives < (size_t) - (long)count) {
    code = ZPS_ERR_INVALID;
  } else {
    port->n_receives += (size_t)(long)count;
  }
  pthread_mutex_unlock(&port->lock);
  return code;
}

struct zps_loop_region *zps_loop_port_expose(struct zps_loop_port *port, const void *base, size_t len,
                                             uint64_t *key_p) {
  struct zps_loop_region *region = calloc(1, sizeof *region);
  if (!region) return NULL;
  pthread_mutex_lock(&registry.lock);
  *key_p = region->key = ++registry.last_key;
  pthread_mutex_unlock(&registry.lock);
  region->base = base;
  region->len = len;
  pthread_mutex_lock(&port->lock);
  region->next = port->regions;
  port->regions = region;
  pthread_mutex_unlock(&port->lock);
  return region;
}

void zps_loop_port_conceal(struct zps_loop_port *port, struct zps_loop_region *region) {
  pthread_mutex_lock(&port->lock);
  struct zps_loop_region **link = &port->regions;
  while (*link != region) link = &(*link)->next;
  *link = region->next;
  pthread_mutex_unlock(&port->lock);
  free(region);
}

struct zps_loop_message *zps_loop_port_take(struct zps_loop_port *port) {
  pthread_mutex_lock(&port->lock);
  struct zps_loop_message *message = port->n_receives > 0 ? port->inbox : NULL;
  if (message) {
    port->inbox = message->next;
    if (!port->inbox) port->inbox_tail = &port->inbox;
  }
  pthread_mutex_unlock(&port->lock);
  return message;
}

void zps_loop_port_repost(struct zps_loop_port *port) {
  pthread_mutex_lock(&port->lock);
  port->n_inbox--;
  pthread_mutex_unlock(&port->lock);
}

size_t zps_loop_port_receives(struct zps_loop_port *port) {
  pthread_mutex_lock(&port->lock);
  const size_t n = port->n_receives;
  pthread_mutex_unlock(&port->lock);
  return n;
}

uint64_t zps_loop_port_unmatched(struct zps_loop_port *port) {
  pthread_mutex_lock(&port->lock);
  const uint64_t n = port->unmatched;
  pthread_mutex_unlock(&port->lock);
  return n;
}

void zps_loop_port_wait(struct zps_loop_port *port, uint64_t until_ns) {
  const struct timespec ts = zps_clock_timespec(until_ns);
  pthread_mutex_lock(&port->lock);
  while (!port->woken && !(port->inbox && port->n_receives > 0)) {
    if (until_ns == ZPS_NEVER) {
      pthread_cond_wait(&port->ready, &port->lock);
    } else if (pthread_cond_timedwait(&port->ready, &port->lock, &ts) != 0) {
      break;
    }
  }
  port->woken = false;
  pthread_mutex_unlock(&port->lock);
}

void zps_loop_port_wake(struct zps_loop_port *port) {
  pthread_mutex_lock(&port->lock);
  port->woken = true;
  pthread_cond_signal(&port->ready);
  pthread_mutex_unlock(&port->lock);
}

/* Without memory for its notice, a cut is one that the owner's reads survive. */
void zps_loop_port_cut(struct zps_loop_port *port, uint64_t src, bool is_told) {
  struct cut *cut = malloc(sizeof *cut);
  pthread_mutex_lock(&port->lock);
  struct zps_loop_message **link = &port->inbox;
  while (*link) {
    struct zps_loop_message *const message = *link;
    if (message->src != src) {
      link = &message->next;
      continue;
    }
    *link = message->next;
    port->n_inbox--;
    free(message);
  }
  port->inbox_tail = link;
  if (cut) {
    *cut = (struct cut){.next = port->cuts, .src = src, .is_told = is_told};
    port->cuts = cut;
  }
  port->woken = true;
  pthread_cond_signal(&port->ready);
  pthread_mutex_unlock(&port->lock);
}

bool zps_loop_port_take_cut(struct zps_loop_port *port, uint64_t *src_p, bool *is_told_p) {
  pthread_mutex_lock(&port->lock);
  struct cut *const cut = port->cuts;
  if (cut) port->cuts = cut->next;
  pthread_mutex_unlock(&port->lock);
  if (!cut) return false;
  *src_p = cut->src;
  *is_told_p = cut->is_told;
  free(cut);
  return true;
}

zps_err_t zps_loop_port_put(struct zps_loop_port *port, struct zps_loop_message *message) {
  zps_err_t code = ZPS_OK;
  pthread_mutex_lock(&port->lock);
  if (port->closed) {
    code = ZPS_ERR_PEER_LOST;
  } else if (port->n_inbox >= port->n_receives + INBOX_SLACK) {
    code = ZPS_ERR_AGAIN;
  } else {
    if (port->n_inbox >= port->n_receives) port->unmatched++;
    message->next = NULL;
    *port->inbox_tail = message;
    port->inbox_tail = &message->next;
    port->n_inbox++;
    pthread_cond_signal(&port->ready);
  }
  pthread_mutex_unlock(&port->lock);
  return code;
}

/* Called with the lock held. */
static bool stream_is_blocked(const struct zps_loop_port *port, uint64_t src) {
  if (port->n_inbox <= port->n_receives) return false;
  const struct zps_loop_message *message = port->inbox;
  for (size_t i = 0; message && i < port->n_receives; i++) message = message->next;
  while (message && message->src != src) message = message->next;
  return message != NULL;
}

zps_err_t zps_loop_port_read(struct zps_loop_port *port, uint64_t src, const struct zps_net_read *read) {
  zps_err_t code = ZPS_ERR_FABRIC;
  pthread_mutex_lock(&port->lock);
  if (port->closed) {
    code = ZPS_ERR_PEER_LOST;
  } else if (stream_is_blocked(port, src)) {
    code = ZPS_ERR_AGAIN;
  } else {
    const struct zps_loop_region *region = port->regions;
    const uint64_t key = read->rail == 0 ? read->key : read->more.key[read->rail - 1];
    while (region && region->key != key) region = region->next;
    const uint64_t offset = region ? read->addr - (uintptr_t)region->base : 0;
    if (region && offset <= region->len && read->len <= region->len - offset) {
      memcpy(read->local, region->base + offset, read->len);
      code = ZPS_OK;
    }
  }
  pthread_mutex_unlock(&port->lock);
  return code;
}
