/* A data plane when memory is short: open and linked to all, or not at all and nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/fabrics/loop.h"
#include "tests/support/locked.h"
#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "tests/support/views.h"
#include "worker/control/membership.h"
#include "worker/plane/plane.h"

static uint64_t no_tick(void *ctx, uint64_t now_ns) {
  (void)ctx;
  (void)now_ns;
  return ZPS_NEVER;
}

static void no_loss(void *ctx, struct zps_remote *remote, const char *why) {
  (void)ctx, (void)remote, (void)why;
}

static zps_err_t plane_create(void *ctx) {
  char provider[] = "loop";
  const struct zps_worker_options options = {
      .provider = provider, .device = -1, .local_world = 64, .threads = 2, .memory_limit_bytes = 1 << 20};
  const struct zps_plane_handler handler = {.on_tick = no_tick, .on_lost = no_loss};
  return zps_plane_open(&options, &handler, ctx, NULL);
}

static void plane_destroy(void *ctx) {
  zps_plane_disconnect(ctx);
  zps_plane_close(ctx);
}

static void planes(void **state) {
  (void)state;
  static struct zps_plane plane;
  oom_sweep(plane_create, plane_destroy, &plane, 5);
}

/* Told when it opens, not when it registers. */
static void a_fabric_that_may_not_pin_enough(void **state) {
  (void)state;
  static struct zps_plane plane;
  char provider[] = "efa";
  const struct zps_worker_options options = {
      .provider = provider, .device = -1, .local_world = 64, .threads = 2, .memory_limit_bytes = 1 << 30};
  const struct zps_plane_handler handler = {.on_tick = no_tick, .on_lost = no_loss};
  struct zps_error error = {.text = ""};
  struct locked locked;
  locked_begin(&locked, 1 << 20);
  assert_int_equal(zps_plane_open(&options, &handler, &plane, &error), ZPS_ERR_REFUSED);
  assert_non_null(strstr(error.text, "only 1024 KiB (RLIMIT_MEMLOCK)"));
  assert_non_null(strstr(error.text, "ZENPS_MEMORY_LIMIT"));
  locked_end(&locked);
}

static struct zps_join_peers peers;

static zps_err_t link_create(void *ctx) {
  struct zps_error error;
  return zps_plane_link(ctx, &peers, &error);
}

static void link_keep(void *ctx) {
  (void)ctx;
}

/* Links are made whole or not at all. */
static void links(void **state) {
  (void)state;
  enum { WORLD = 3 };
  static struct zps_plane plane, others[WORLD - 1];
  static struct zps_join_peer ranks[WORLD];
  const struct zps_join join = {.job_id = 7, .seed = 1, .view = {.epoch = 1}};
  peers = (struct zps_join_peers){.world = WORLD, .ranks = ranks};
  assert_int_equal(plane_create(&plane), ZPS_OK);
  assert_int_equal(zps_plane_connect(&plane, &join, 0, 1, NULL), ZPS_OK);
  for (unsigned i = 0; i < WORLD - 1; i++) {
    assert_int_equal(plane_create(&others[i]), ZPS_OK);
    const struct zps_net_info *fabric = zps_net_info(zps_engine_net(others[i].engine));
    memcpy(ranks[i + 1].addr, fabric->addr, fabric->addr_len);
    ranks[i + 1].addr_len = fabric->addr_len;
    strcpy(ranks[i + 1].host, "here");
  }
  oom_sweep(link_create, link_keep, &plane, 5);
  assert_int_equal(zps_plane_link(&plane, &peers, NULL), ZPS_OK); /* again: nothing to do */
  plane.closed = true;                                            /* losses are no news */
  plane_destroy(&plane);
  for (unsigned i = 0; i < WORLD - 1; i++) plane_destroy(&others[i]);
}

static struct zps_join joined;

/* As a job is opened that cannot be: what there is of it is closed. */
static zps_err_t connected_create(void *ctx) {
  zps_err_t err = plane_create(ctx);
  if (err != ZPS_OK) return err;
  err = zps_plane_connect(ctx, &joined, 0, 1, NULL);
  if (err != ZPS_OK) plane_destroy(ctx);
  return err;
}

static void connected_destroy(void *ctx) {
  ((struct zps_plane *)ctx)->closed = true;
  plane_destroy(ctx);
}

static void servers(void **state) {
  (void)state;
  enum { SERVERS = 2 };
  static struct zps_plane plane, others[SERVERS];
  static struct zps_place_image to[SERVERS];
  joined = (struct zps_join){.job_id = 7, .seed = 1, .view = view_of(to, 1, SERVERS, "ii")};
  for (unsigned i = 0; i < SERVERS; i++) {
    assert_int_equal(plane_create(&others[i]), ZPS_OK);
    const struct zps_net_info *fabric = zps_net_info(zps_engine_net(others[i].engine));
    memcpy(to[i].server.addr, fabric->addr, fabric->addr_len);
    to[i].server.addr_len = fabric->addr_len;
  }
  oom_sweep(connected_create, connected_destroy, &plane, 10);
  for (unsigned i = 0; i < SERVERS; i++) plane_destroy(&others[i]);
}

static int begin_test(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "memory");
  logs_allow(ZPS_LOG_WARN, "dropped a CREDIT frame of job"); /* at the other end, of a rank that has gone */
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(planes), cmocka_unit_test(servers), cmocka_unit_test(links),
                                     cmocka_unit_test(a_fabric_that_may_not_pin_enough)};
  return cmocka_run_group_tests_name("planes without memory", tests, begin_test, logs_check);
}
