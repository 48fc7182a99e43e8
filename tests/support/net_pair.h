/* Two endpoints of one provider, driven by the test's own thread, and the messages that arrive at them. */
#ifndef ZPS_TESTS_NET_PAIR_H
#define ZPS_TESTS_NET_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/net.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/patience.h"

/* One end: its endpoint, its handle of the other end, and a log of the messages that its handler saw. */
struct end {
  struct zps_net *net;
  struct zps_net_peer *peer;
  void (*on_message)(struct end *end, const void *data, size_t len); /* NULL: count and keep the last */
  void (*on_error)(struct end *end);                                 /* NULL: count */
  void *ctx;
  unsigned n_messages, n_errors;
  zps_err_t error;
  uint8_t last[ZPS_NET_MSG_MAX];
  size_t last_len;
};

static inline void end_on_message(void *ctx, const void *data, size_t len) {
  struct end *end = ctx;
  end->n_messages++;
  end->last_len = len;
  memcpy(end->last, data, len);
  if (end->on_message) end->on_message(end, data, len);
}

static inline void end_on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct end *end = ctx;
  assert_ptr_equal(peer, end->peer);
  assert_non_null(text);
  end->n_errors++;
  end->error = code;
  if (end->on_error) end->on_error(end);
}

static inline void end_open(struct end *end, const char *provider, const char *fault, unsigned n_recv) {
  const struct zps_net_config config = {.provider = provider, .max_msg = ZPS_NET_MSG_MAX, .n_recv = n_recv, .fault = fault};
  const struct zps_net_handler handler = {.ctx = end, .on_message = end_on_message, .on_peer_error = end_on_peer_error};
  struct zps_error error = {.text = ""};
  memset(end, 0, sizeof *end);
  if (zps_net_open(&config, &handler, &end->net, &error) != ZPS_OK) fail_msg("%s", error.text);
}

static inline void end_connect(struct end *end, const struct end *to) {
  const struct zps_net_info *info = zps_net_info(to->net);
  struct zps_error error = {.text = ""};
  if (zps_net_peer_add(end->net, info->addr, info->addr_len, end, &end->peer, &error) != ZPS_OK)
    fail_msg("%s", error.text);
}

static inline void pair_open(struct end ends[2], const char *provider, const char *fault, unsigned n_recv) {
  for (int i = 0; i < 2; i++) end_open(&ends[i], provider, fault, n_recv);
  for (int i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
}

static inline void pair_close(struct end ends[2]) {
  for (int i = 0; i < 2; i++) {
    zps_net_close(ends[i].net);
    ends[i].net = NULL;
  }
}

static inline struct zps_net_mem end_register(struct end *end, void *base, size_t len) {
  struct zps_net_mem mem;
  struct zps_error error = {.text = ""};
  if (zps_net_mem_register(end->net, base, len, &mem, &error) != ZPS_OK) fail_msg("%s", error.text);
  return mem;
}

/* Turns both ends until `condition`. A short wait, so that delays of the fault injector pass. */
#define TURN_UNTIL(ends, condition)                                                \
  do {                                                                             \
    struct patience patience_ = {0};                                               \
    while (!(condition)) {                                                         \
      if (patience_is_over(&patience_)) fail_msg("never reached: %s", #condition); \
      if (zps_net_progress((ends)[0].net) + zps_net_progress((ends)[1].net) == 0)  \
        zps_net_wait((ends)[0].net, ZPS_NS_PER_MS / 10);                           \
    }                                                                              \
  } while (0)

/* The callback of a read. */
struct read_record {
  struct zps_net_read read;
  unsigned n_done, n_released;
  zps_err_t code;
};

static inline void record_done(struct zps_net_read *read, zps_err_t code) {
  struct read_record *record = read->ctx;
  record->n_done++;
  record->code = code;
  assert_int_equal(record->n_released, 0);
}

static inline void record_release(struct zps_net_read *read) {
  struct read_record *record = read->ctx;
  assert_int_equal(record->n_done, 1);
  assert_int_equal(record->code, ZPS_ERR_PEER_LOST);
  record->n_released++;
}

static inline void record_init(struct read_record *record, const struct zps_net_mem *local,
                               const struct zps_net_mem *remote, size_t len) {
  memset(record, 0, sizeof *record);
  record->read = (struct zps_net_read){.local = local->base,
                                       .mem = local,
                                       .len = len,
                                       .addr = remote->addr,
                                       .key = remote->key,
                                       .done = record_done,
                                       .release = record_release,
                                       .ctx = record};
}

/* Counts warnings and errors instead of printing them. */
static inline void log_count(void *ctx, const struct zps_log_line *line) {
  if (line->level <= ZPS_LOG_WARN) ++*(unsigned *)ctx;
}

/* For sweeps of missing memory: an endpoint of `config` with a peer, itself, and a registration. */
struct net_sweep {
  struct zps_net_config config;
  struct zps_net *net;
  uint8_t bytes[16];
};

static inline zps_err_t net_sweep_create(void *ctx) {
  struct net_sweep *sweep = ctx;
  const struct zps_net_handler handler = {.on_message = end_on_message, .on_peer_error = end_on_peer_error};
  struct zps_net_peer *peer;
  struct zps_net_mem mem;
  zps_err_t code = zps_net_open(&sweep->config, &handler, &sweep->net, NULL);
  if (code != ZPS_OK) return code;
  const struct zps_net_info *info = zps_net_info(sweep->net);
  code = zps_net_peer_add(sweep->net, info->addr, info->addr_len, NULL, &peer, NULL);
  if (code == ZPS_OK) code = zps_net_mem_register(sweep->net, sweep->bytes, sizeof sweep->bytes, &mem, NULL);
  if (code != ZPS_OK) zps_net_close(sweep->net);
  return code;
}

static inline void net_sweep_destroy(void *ctx) {
  zps_net_close(((struct net_sweep *)ctx)->net);
}

#endif
