/* Endpoints with several rails over the in-process fabric, whose rails the test has in its own hands. */
#ifndef ZPS_TESTS_UNIT_NET_RAILS_RIG_H
#define ZPS_TESTS_UNIT_NET_RAILS_RIG_H

#include "common/net/backend.h"
#include "tests/support/net_pair.h"

enum { BYTES = 1 << 20, PIECE = 10000 };

/* The endpoints that are opened as rails, for the test's own hands. */
static struct zps_net *opened[8];
static unsigned n_opened, n_cards, spin_us, refusing_rail = ZPS_NET_RAILS_MAX;
static unsigned refuse_memory; /* a bit for each of `opened` */
static const char *fault;      /* rules, over all rails; NULL: none */
static struct zps_net_config asked[8];

/* The in-process fabric, with a cut that both ends see. */
static struct zps_net_ops rail_ops;
static const struct zps_net_ops *loop_ops;
static struct zps_net_peer *last_peer[8]; /* of each endpoint */

static inline void rail_cut(struct zps_net_peer *peer) {
  loop_ops->cut(peer, true, true);
}

static inline unsigned index_of(const struct zps_net *net) {
  unsigned i = 0;
  while (opened[i] != net) i++;
  return i;
}

static inline zps_err_t rail_mem_register(struct zps_net *net, void *base, size_t len,
                                          const struct zps_net_device *device, struct zps_net_mem *mem_p,
                                          struct zps_error *error) {
  (void)device; /* host memory stands for it */
  if (refuse_memory & 1u << index_of(net)) return zps_fail(error, ZPS_ERR_NOMEM, "the card has no room");
  return loop_ops->mem_register(net, base, len, NULL, mem_p, error);
}

static inline zps_err_t rail_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                      struct zps_net_peer **peer_p, struct zps_error *error) {
  const zps_err_t code = loop_ops->peer_add(net, addr, len, ctx, peer_p, error);
  const unsigned i = index_of(net);
  if (asked[i].rail == refusing_rail) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a peer");
  if (code == ZPS_OK) last_peer[i] = *peer_p;
  return code;
}

/* A rail with nothing to sleep on. */
static bool has_rest;
static unsigned n_rests;
static uint64_t rest_ns;

static inline bool rail_rest(struct zps_net *net, struct zps_net_rest *rest) {
  (void)net;
  n_rests++;
  rest_ns = rest->timeout_ns;
  return rest->timeout_ns <= ZPS_NS_PER_MS; /* of a longer sleep the test knows enough */
}

static inline void rail_rested(struct zps_net *net) {
  (void)net;
}

static inline zps_err_t open_rail(const struct zps_net_config *config, const struct zps_net_handler *handler,
                                  struct zps_net **net_p, struct zps_error *error) {
  if (config->rail >= n_cards) return zps_fail(error, ZPS_ERR_FABRIC, "there is no card number %u", config->rail);
  const zps_err_t code = zps_net_loop_open(config, handler, net_p, error);
  if (code != ZPS_OK) return code;
  loop_ops = loop_ops ? loop_ops : (*net_p)->ops;
  rail_ops = *loop_ops;
  rail_ops.peer_cut = fault ? NULL : rail_cut; /* the injector cuts by itself */
  rail_ops.peer_add = rail_peer_add;
  rail_ops.mem_register = rail_mem_register;
  rail_ops.rest = has_rest ? rail_rest : NULL;
  rail_ops.rested = rail_rested;
  (*net_p)->ops = &rail_ops;
  asked[n_opened] = *config;
  opened[n_opened++] = *net_p;
  return ZPS_OK;
}

static inline zps_err_t open_rails(const struct zps_net_config *config, const struct zps_net_handler *handler,
                                   struct zps_net **net_p, struct zps_error *error) {
  return zps_net_rails_open(config, handler, open_rail, net_p, error);
}

static inline void railed_open(struct end *end, unsigned rails) {
  const struct zps_net_config config = {
      .provider = "loop", .max_msg = 8192, .n_recv = 8, .rails = rails, .spin_us = spin_us, .fault = fault};
  const struct zps_net_handler handler = {.ctx = end, .on_message = end_on_message, .on_peer_error = end_on_peer_error};
  struct zps_error error = {.text = ""};
  memset(end, 0, sizeof *end);
  const zps_err_t code = fault ? zps_net_fault_open(&config, &handler, open_rails, &end->net, &error)
                               : open_rails(&config, &handler, &end->net, &error);
  if (code != ZPS_OK) fail_msg("%s", error.text);
  end->net->info.max_msg = config.max_msg;
}

/* A setup: what a failed test has left behind ends with it. */
static inline int rails_start(void **state) {
  (void)state;
  zps_log_set_sink(NULL, NULL);
  zps_log_set_level(ZPS_LOG_WARN);
  n_opened = spin_us = refuse_memory = 0;
  n_cards = refusing_rail = ZPS_NET_RAILS_MAX;
  fault = NULL;
  has_rest = false;
  return 0;
}

static inline void railed_pair(struct end ends[2], unsigned rails_0, unsigned rails_1) {
  n_opened = 0;
  n_cards = ZPS_NET_RAILS_MAX;
  railed_open(&ends[0], rails_0);
  railed_open(&ends[1], rails_1);
  for (int i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
}

#endif
