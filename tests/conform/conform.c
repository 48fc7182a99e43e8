/* The frame of the suite: targets, endpoints, stepping, data. */
#include "tests/conform/conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/support/fabrics/loop.h"

const struct conform_target *conform_target;

static struct {
  _Atomic unsigned seen;
  unsigned allowed;
  char last[300];
} warnings;

static void log_sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  if (line->level <= ZPS_LOG_WARN) {
    warnings.seen++;
    snprintf(warnings.last, sizeof warnings.last, "%s: %s", line->component, line->text);
  }
  if (getenv("CONFORM_VERBOSE"))
    fprintf(stderr, "# %s %s: %s\n", zps_log_level_name(line->level), line->component, line->text);
}

void conform_allow_warnings(unsigned n) {
  warnings.allowed = n;
}

unsigned conform_scale(unsigned iterations) {
  const unsigned by = conform_target->slowness ? conform_target->slowness : 1;
  return iterations / by > 0 ? iterations / by : 1;
}

struct zps_net_config conform_config(void) {
  return (struct zps_net_config){
      .provider = conform_target->provider,
      .interface = conform_target->interface,
      .fault = conform_target->fault,
      .tls = conform_target->tls,
      .rails = conform_target->rails,
      .connections = conform_target->connections,
      .max_msg = CONFORM_MAX_MSG,
      .n_recv = 64,
      .connect_timeout_ms = PATIENCE_NEVER_MS,
  };
}

struct zps_net_config conform_config_of_second(const struct zps_net_config *config) {
  struct zps_net_config second = *config;
  second.dials = conform_target->dials;
  return second;
}

static void on_message(void *ctx, const void *data, size_t len) {
  struct conform_node *node = ctx;
  node->n_messages++;
  if (node->on_message) node->on_message(node, data, len);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct conform_node *node = ctx;
  if (node->failed == peer) fail_msg("the error of a peer was reported twice");
  if (!text || !text[0]) fail_msg("the error of a peer came without a text");
  node->n_errors++;
  node->failed = peer;
  node->error = code;
}

void conform_node_open(struct conform_node *node, const struct zps_net_config *config) {
  const struct zps_net_handler handler = {.ctx = node, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_error error = {0};
  *node = (struct conform_node){0};
  if (zps_net_open(config, &handler, &node->net, &error) != ZPS_OK) fail_msg("zps_net_open: %s", error.text);
  if (conform_target->opened) conform_target->opened(node->net);
}

void conform_node_close(struct conform_node *node) {
  zps_net_close(node->net);
  node->net = NULL;
}

struct zps_net_peer *conform_peer_add(struct conform_node *node, const struct conform_node *to) {
  const struct zps_net_info *info = zps_net_info(to->net);
  struct zps_net_peer *peer = NULL;
  struct zps_error error = {0};
  if (zps_net_peer_add(node->net, info->addr, info->addr_len, node, &peer, &error) != ZPS_OK)
    fail_msg("zps_net_peer_add: %s", error.text);
  return peer;
}

void conform_pair_open(struct conform_pair *pair, const struct zps_net_config *config) {
  const struct zps_net_config second = conform_config_of_second(config);
  conform_node_open(&pair->a, config);
  conform_node_open(&pair->b, &second);
  pair->a_to_b = conform_peer_add(&pair->a, &pair->b);
  pair->b_to_a = conform_peer_add(&pair->b, &pair->a);
}

void conform_pair_close(struct conform_pair *pair) {
  conform_node_close(&pair->a);
  conform_node_close(&pair->b);
}

void conform_step(struct conform_node *const *nodes, size_t n) {
  unsigned n_events = 0;
  for (size_t i = 0; i < n; i++) n_events += zps_net_progress(nodes[i]->net);
  if (n_events == 0) zps_net_wait(nodes[0]->net, n == 1 ? 5 * ZPS_NS_PER_MS : 50000);
}

void conform_send(struct zps_net_peer *peer, const void *data, size_t len, struct conform_node *const *nodes,
                  size_t n) {
  struct patience patience = {0};
  zps_err_t code;
  while ((code = zps_net_send(peer, data, len)) == ZPS_ERR_AGAIN && !patience_is_over(&patience))
    conform_step(nodes, n);
  if (code != ZPS_OK) fail_msg("zps_net_send of %zu bytes: %s", len, zps_err_name(code));
}

void conform_expect_lost(struct zps_net_peer *peer) {
  zps_err_t code;
  unsigned n_more = conform_target->fault ? 100 : 0;
  while ((code = zps_net_send(peer, "anyone?", 7)) != ZPS_ERR_PEER_LOST && n_more > 0) n_more--;
  assert_int_equal(code, ZPS_ERR_PEER_LOST);
}

static void on_done(struct zps_net_read *read, zps_err_t code) {
  struct conform_read *outer = read->ctx;
  outer->n_done++;
  outer->code = code;
}

static void on_release(struct zps_net_read *read) {
  struct conform_read *outer = read->ctx;
  if (outer->n_done != 1) fail_msg("a read was released after %u calls of done", outer->n_done);
  if (outer->code != ZPS_ERR_PEER_LOST) fail_msg("a read was released after %s", zps_err_name(outer->code));
  outer->n_released++;
}

void conform_read_start(struct conform_read *read, struct zps_net_peer *peer, void *local,
                        const struct zps_net_mem *mem, size_t len, uint64_t addr, uint64_t key) {
  *read = (struct conform_read){.read = {.local = local, .mem = mem, .len = len, .addr = addr, .key = key}};
  read->read.done = on_done;
  read->read.release = on_release;
  read->read.ctx = read;
  const zps_err_t code = zps_net_read(peer, &read->read);
  if (code != ZPS_OK) fail_msg("zps_net_read of %zu bytes: %s", len, zps_err_name(code));
  assert_int_equal(read->n_done, 0); /* callbacks come from progress alone */
}

struct zps_net_mem conform_register(struct conform_node *node, void *base, size_t len) {
  struct zps_net_mem mem;
  struct zps_error error = {0};
  if (zps_net_mem_register(node->net, base, len, &mem, &error) != ZPS_OK) fail_msg("%s", error.text);
  return mem;
}

void conform_fill(void *to, uint64_t seed, size_t len) {
  for (size_t i = 0; i < len; i++) ((uint8_t *)to)[i] = conform_byte(seed, i);
}

bool conform_check(const void *data, uint64_t seed, size_t offset, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (((const uint8_t *)data)[i] != conform_byte(seed, offset + i)) return false;
  return true;
}

static int setup(void **state) {
  (void)state;
  warnings.seen = warnings.allowed = 0;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  if (warnings.seen > warnings.allowed) {
    fprintf(stderr, "# unexpected: %s\n", warnings.last);
    return -1;
  }
  return 0;
}

enum needs { NOTHING, PROCESSES, SEPARATION, OUTLIVING };

static const struct {
  struct CMUnitTest test;
  enum needs needs;
} all[] = {
#define X(name, needs) {cmocka_unit_test_setup_teardown(conform_##name, setup, teardown), needs},
    CONFORM_TESTS(X)
#undef X
};

static bool target_can(enum needs needs) {
  return !(needs == PROCESSES && conform_target->in_process) &&
         !(needs == SEPARATION && conform_target->shares_regions) &&
         !(needs == OUTLIVING && conform_target->dies_with_peer);
}

/* Is the provider there at all? Prints why not. */
static bool target_is_there(void) {
  const struct zps_net_config config = conform_config();
  struct conform_node node = {0};
  struct zps_error error = {0};
  const struct zps_net_handler handler = {.ctx = &node, .on_message = on_message, .on_peer_error = on_peer_error};
  const zps_err_t code = zps_net_open(&config, &handler, &node.net, &error);
  if (code == ZPS_OK) zps_net_close(node.net);
  if (code != ZPS_OK) printf(conform_target->must_be_there ? "Bail out! %s\n" : "1..0 # SKIP %s\n", error.text);
  return code == ZPS_OK;
}

int conform_main(int argc, char **argv, const struct conform_target *target) {
  conform_target = target;
  zps_log_set_sink(log_sink, NULL);
  if (getenv("CONFORM_VERBOSE")) zps_log_set_level(ZPS_LOG_DEBUG);
  if (argc > 2 && strcmp(argv[1], "--child") == 0) return conform_child_main(atoi(argv[2]));
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  if (!target_is_there()) return target->must_be_there;
  enum { N_TESTS = sizeof all / sizeof all[0] };
  struct CMUnitTest tests[N_TESTS];
  size_t n = 0;
  for (size_t i = 0; i < N_TESTS; i++) {
    if (target_can(all[i].needs)) {
      tests[n++] = all[i].test;
    } else {
      printf("# %s is left out: it makes no sense on %s\n", all[i].test.name, target->provider);
    }
  }
  fflush(stdout);
  return _cmocka_run_group_tests(target->provider, tests, n, NULL, NULL);
}
