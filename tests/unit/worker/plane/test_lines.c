/* Lines for registered memory that change while they are served, and the cases in which refusing a waiting round is too
 * early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/container.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/logs.h"
#include "worker/plane/memory.h"

enum { MIB = 1 << 20, LIMIT = 8 * MIB };

static struct zps_net *net;
static struct zps_slab *slab;
static struct zps_plane_memory memory;
static char order[64]; /* the buffers served, a letter for the receiver of each */

/* Something that waits for `n_left` buffers of 1 MiB. */
struct asker {
  struct zps_plane_wait wait;
  enum zps_plane_line line;
  char name;
  unsigned n_left, n_has;
  bool is_idle;
  struct zps_plane_use used;
  struct zps_buf bufs[8];
  struct asker *forgets, *wakes; /* the object that it takes out of its line, or puts into it, when it is asked */
  zps_err_t code;
  char text[256];
};

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

static int open_slab(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "loop", .max_msg = 4096, .n_recv = 1};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  logs_start();
  memset(order, 0, sizeof order);
  if (zps_net_open(&config, &handler, &net, NULL) != ZPS_OK) return -1;
  if (zps_slab_create(net, LIMIT, LIMIT, &slab) != ZPS_OK) return -1;
  zps_plane_memory_init(&memory, slab, LIMIT);
  return 0;
}

static int close_slab(void **state) {
  (void)state;
  zps_slab_destroy(slab);
  zps_net_close(net);
  logs_finish();
  return 0;
}

static zps_err_t take(struct zps_plane_wait *wait) {
  struct asker *asker = zps_container_of(wait, struct asker, wait);
  if (asker->forgets) zps_plane_memory_forget(&memory, &asker->forgets->wait);
  if (asker->wakes) zps_plane_memory_want(&memory, asker->wakes->line, &asker->wakes->wait);
  asker->forgets = asker->wakes = NULL;
  while (asker->n_left > 0) {
    const zps_err_t err =
        zps_plane_memory_get(&memory, asker->line, &asker->used, asker->is_idle, MIB, &asker->bufs[asker->n_has]);
    if (err != ZPS_OK) return err;
    asker->n_has++;
    asker->n_left--;
    order[strlen(order)] = asker->name;
  }
  return ZPS_OK;
}

static void refused(struct zps_plane_wait *wait, zps_err_t err, const char *text) {
  struct asker *asker = zps_container_of(wait, struct asker, wait);
  asker->code = err;
  snprintf(asker->text, sizeof asker->text, "%s", text);
}

static void ask(struct asker *asker, char name, enum zps_plane_line line, unsigned n) {
  *asker = (struct asker){.wait = {.take = take, .refused = refused}, .line = line, .name = name, .n_left = n};
  zps_plane_memory_want(&memory, line, &asker->wait);
}

static void give(struct asker *asker) {
  while (asker->n_has > 0) zps_plane_memory_put(&memory, asker->line, &asker->used, &asker->bufs[--asker->n_has]);
  assert_int_equal(asker->used.push + asker->used.pull, 0);
}

static bool waits(const struct asker *asker) {
  return zps_plane_memory_waits(&asker->wait);
}

/* Sums come before pushes, even before earlier ones; pushes are served as they came. */
static void in_order(void **state) {
  (void)state;
  struct asker a, b, c, d;
  ask(&a, 'a', ZPS_LINE_PUSH, 1);
  ask(&b, 'b', ZPS_LINE_PUSH, 1);
  ask(&c, 'c', ZPS_LINE_PULL, 1);
  ask(&d, 'd', ZPS_LINE_PEER, 1);
  zps_plane_memory_serve(&memory);
  assert_string_equal(order, "dcab");
  assert_int_equal(memory.used.push, 3 * MIB);
  assert_int_equal(memory.used.pull, MIB);
  zps_plane_memory_serve(&memory); /* nothing has changed */
  assert_false(memory.is_due);
  give(&a), give(&b), give(&c), give(&d);
  assert_int_equal(memory.used.push + memory.used.pull, 0);
  assert_true(memory.is_due);
}

/* A sum is not alone while another round holds anything, nor a push while there are sums of others. */
static void others_may_give_back(void **state) {
  (void)state;
  struct asker a, b;
  struct zps_buf more;
  ask(&a, 'a', ZPS_LINE_PUSH, 7);
  ask(&b, 'b', ZPS_LINE_PULL, 1);
  zps_plane_memory_serve(&memory);
  assert_int_equal(zps_plane_memory_get(&memory, ZPS_LINE_PULL, &b.used, true, MIB, &more), ZPS_ERR_AGAIN);
  assert_int_equal(zps_plane_memory_get(&memory, ZPS_LINE_PUSH, &a.used, true, MIB, &more), ZPS_ERR_AGAIN);
  give(&b);
  ask(&b, 'b', ZPS_LINE_PUSH, 1);
  zps_plane_memory_serve(&memory);
  assert_true(waits(&b));
  zps_plane_memory_forget(&memory, &b.wait);
  give(&a);
}

/* The request is larger than the limit: no memory that comes back would help. */
static void larger_than_all(void **state) {
  (void)state;
  struct zps_plane_use used = {0};
  struct zps_buf buf;
  logs_allow(ZPS_LOG_WARN, "limit");
  assert_int_equal(zps_plane_memory_get(&memory, ZPS_LINE_PULL, &used, false, 2 * LIMIT, &buf), ZPS_ERR_NOMEM);
  assert_int_equal(used.pull + memory.used.pull, 0);
}

/* An object that is asked may take others out of the line, or put them in. */
static void lines_change_while_served(void **state) {
  (void)state;
  struct asker a, b, c;
  ask(&a, 'a', ZPS_LINE_PUSH, 1);
  ask(&b, 'b', ZPS_LINE_PUSH, 1);
  ask(&c, 'c', ZPS_LINE_PUSH, 1);
  a.forgets = &b;
  zps_plane_memory_serve(&memory);
  assert_string_equal(order, "ac");
  assert_false(waits(&b));
  assert_true(memory.is_due); /* the position in line that was given up */
  give(&a), give(&c);
  memset(order, 0, sizeof order);
  ask(&a, 'a', ZPS_LINE_PULL, 1);
  a.wakes = &b;
  zps_plane_memory_serve(&memory);
  assert_string_equal(order, "ab");
  give(&b);
  ask(&c, 'c', ZPS_LINE_PUSH, 1);
  c.forgets = &c; /* itself: as if its round had ended */
  c.n_left = 0;
  zps_plane_memory_serve(&memory);
  assert_false(waits(&c));
  assert_int_equal(c.code, ZPS_OK);
  give(&a);
}

#define MEMORY(test) cmocka_unit_test_setup_teardown(test, open_slab, close_slab)

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMORY(in_order),
      MEMORY(others_may_give_back),
      MEMORY(larger_than_all),
      MEMORY(lines_change_while_served),
  };
  return cmocka_run_group_tests_name("lines for registered memory", tests, NULL, NULL);
}
