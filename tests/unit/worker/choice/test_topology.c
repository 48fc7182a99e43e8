/* Levels from where the ranks are: hosts and racks, in whatever order their ranks were numbered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/base/group.h"
#include "worker/choice/scheme_ask.h"
#include "worker/choice/topology.h"
#include "worker/control/membership.h"
#include "worker/peer/tensor.h"
#include "worker/schemes/common.h"

enum { WORLD = 16 };

/* Rank r is on host hosts[r], which is in rack racks[r]; no racks: none is named. Those of `group`, or all, take part.
 * `levels`: those of the caller; NULL: none. */
static struct zps_peer_tensor *create_of(const char *scheme, const uint32_t *hosts, const uint32_t *racks, uint32_t n,
                                         struct zenps_group *group, uint32_t me, const uint32_t *levels,
                                         uint32_t n_levels) {
  static struct zps_join_peer ranks[WORLD];
  static char name[] = "run";
  const struct zps_worker_options job = {.job = name, .world = n, .local_world = 1};
  const struct zps_join_peers peers = {.world = n, .ranks = ranks};
  struct zps_scheme_ask ask;
  struct zps_peer_tensor *made;
  struct zps_error error = {.text = ""};
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  struct zps_scheme_options given = {.n_levels = n_levels};
  char text[ZPS_SCHEME_TEXT_MAX + 1];
  for (uint32_t i = 0; i < n_levels; i++) given.levels[i] = levels[i];
  snprintf(text, sizeof text, "%s", scheme);
  options.scheme = zps_scheme_options_add(&given, text);
  options.group = group;
  for (uint32_t r = 0; r < n; r++) {
    snprintf(ranks[r].host, sizeof ranks[r].host, "host%u", (unsigned)hosts[r]);
    ranks[r].rack[0] = '\0';
    if (racks) snprintf(ranks[r].rack, sizeof ranks[r].rack, "rack%u", (unsigned)racks[r]);
  }
  assert_int_equal(zps_scheme_ask_init(&ask, &options, &job, "t", 3000, 2, ZPS_DTYPE_F32, ZPS_VALUES_RAW, &error),
                   ZPS_OK);
  assert_int_equal(zps_peer_tensor_create(&ask, &peers, me, group, &made, &error), ZPS_OK);
  return made;
}

static struct zps_peer_tensor *create_in(const char *scheme, const uint32_t *hosts, const uint32_t *racks, uint32_t n,
                                         struct zenps_group *group, uint32_t me) {
  return create_of(scheme, hosts, racks, n, group, me, NULL, 0);
}

static struct zps_peer_tensor *create(const uint32_t *hosts, const uint32_t *racks, uint32_t n) {
  return create_in("blueconnect", hosts, racks, n, NULL, 1);
}

static void expect_levels(const uint32_t *hosts, const uint32_t *racks, uint32_t n, const uint32_t *levels,
                          uint32_t n_levels) {
  struct zps_peer_tensor *const made = create(hosts, racks, n);
  assert_int_equal(made->plan.n_levels, n_levels);
  if (n_levels > 0) assert_memory_equal(made->plan.levels, levels, n_levels * sizeof *levels);
  assert_int_equal(made->plan.racks != NULL, n_levels > 0);
  for (uint32_t a = 0; a < n; a++) {
    for (uint32_t b = 0; b < n; b++) {
      assert_int_equal(made->plan.hosts[a] == made->plan.hosts[b], hosts[a] == hosts[b]);
      if (n_levels > 0) assert_int_equal(made->plan.racks[a] == made->plan.racks[b], racks[a] == racks[b]);
    }
  }
  zps_peer_tensor_destroy(made);
}

static void racks(void **state) {
  (void)state;
  static const uint32_t in_order[] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
  static const uint32_t in_order_racks[] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  static const uint32_t dealt[] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};
  static const uint32_t dealt_racks[] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  static const uint32_t levels[] = {2, 2, 3};
  expect_levels(in_order, in_order_racks, 12, levels, 3);
  expect_levels(dealt, dealt_racks, 12, levels, 3);
  static const uint32_t alone[] = {0, 1, 2, 3, 4, 5}, alone_racks[] = {1, 0, 1, 0, 1, 0}, of_racks[] = {3, 2};
  expect_levels(alone, alone_racks, 6, of_racks, 2);
}

static void no_racks(void **state) {
  (void)state;
  static const uint32_t hosts[] = {0, 1, 0, 1, 2, 3, 2, 3};
  static const uint32_t uneven[] = {0, 0, 0, 0, 0, 1, 0, 1}, one[8] = {0}, same[] = {0, 1, 0, 1, 2, 3, 2, 3};
  static const uint32_t spanned[] = {0, 1, 1, 0, 0, 1, 1, 0};
  expect_levels(hosts, NULL, 8, NULL, 0);
  expect_levels(hosts, uneven, 8, NULL, 0);
  expect_levels(hosts, one, 8, NULL, 0);
  expect_levels(hosts, same, 8, NULL, 0);    /* a rack is a host: two levels by host do */
  expect_levels(hosts, spanned, 8, NULL, 0); /* a host in two racks */
}

/* Ranks that rank `me` sends to. */
static void peers_of(const struct zps_peer_tensor *made, bool *sends_to) {
  struct zps_program program = {0};
  made->scheme->build(&made->plan, &program);
  assert_int_equal(program.code, ZPS_OK);
  for (uint32_t i = 0; i < program.n_instrs; i++) {
    if (program.instrs[i].type == ZPS_INSTR_SEND) sends_to[program.instrs[i].peer] = true;
  }
  zps_program_fini(&program);
}

/* Levels of the caller's are those of the hosts and racks that ranks name, in whatever order ranks are numbered: the
 * inner level stays on a host, the middle one in a rack. */
static void given_levels(void **state) {
  (void)state;
  static const uint32_t hosts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};
  static const uint32_t racks_of[] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  static const uint32_t levels[] = {2, 2, 3};
  for (uint32_t me = 0; me < 12; me++) {
    bool sends_to[12] = {false};
    struct zps_peer_tensor *const made = create_of("blueconnect", hosts, racks_of, 12, NULL, me, levels, 3);
    uint32_t on_host = 0, in_rack = 0, far = 0;
    peers_of(made, sends_to);
    for (uint32_t to = 0; to < 12; to++) {
      if (sends_to[to]) ++*(hosts[to] == hosts[me] ? &on_host : racks_of[to] == racks_of[me] ? &in_rack : &far);
    }
    assert_int_equal(on_host, 1);
    assert_int_equal(in_rack, 1);
    assert_int_equal(far, 1); /* the next in a ring of three */
    zps_peer_tensor_destroy(made);
  }
}

/* The hosts of two-level and hierarchical are the first level: ranks of one host, though others are numbered between. A
 * host may be cut in two, and racks may be named or not. */
static void given_hosts(void **state) {
  (void)state;
  static const uint32_t hosts[] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}, one[12] = {0},
                        racks_of[] = {1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1};
  static const uint32_t whole[] = {4, 3}, halves[] = {2, 2, 3};
  static const char *const schemes[] = {"two-level", "hierarchical", "hierarchical:blueconnect"};
  for (unsigned s = 0; s < 3; s++) {
    for (unsigned with_racks = 0; with_racks < 2; with_racks++) {
      struct zps_peer_tensor *made = create_of(schemes[s], hosts, with_racks ? racks_of : NULL, 12, NULL, 4, whole, 2);
      for (uint32_t r = 0; r < 12; r++) assert_int_equal(zps_peer_master(&made->plan, r), r % 3);
      zps_peer_tensor_destroy(made);
      made = create_of(schemes[s], hosts, with_racks ? racks_of : NULL, 12, NULL, 4, halves, 3);
      for (uint32_t r = 0; r < 12; r++) assert_int_equal(zps_peer_master(&made->plan, r), r % 3 + (r < 6 ? 0 : 6));
      zps_peer_tensor_destroy(made);
    }
    struct zps_peer_tensor *const made = create_of(schemes[s], one, NULL, 12, NULL, 4, whole, 2);
    for (uint32_t r = 0; r < 12; r++) assert_int_equal(zps_peer_master(&made->plan, r), r / 4 * 4);
    zps_peer_tensor_destroy(made);
  }
}

static struct zenps_group *group_of(const uint32_t *ranks, uint32_t n) {
  struct zenps_group *const group = calloc(1, sizeof *group + n * sizeof *ranks);
  assert_non_null(group);
  group->n_ranks = n;
  memcpy(group->ranks, ranks, n * sizeof *ranks);
  return group;
}

/* Places are those of the group's ranks: what others are on makes no difference. Masters are named as in the job. */
static void groups(void **state) {
  (void)state;
  static const uint32_t hosts[] = {0, 0, 1, 1, 2, 2, 3, 3}, ranks[] = {1, 2, 3, 6}, racks[] = {0, 0, 1, 0, 0, 0, 1, 1};
  static const uint32_t two[] = {2, 3, 6, 7}, levels[] = {2, 2};
  struct zenps_group *group = group_of(ranks, 4);
  struct zps_peer_tensor *made = create_in("hierarchical", hosts, NULL, 8, group, 3);
  assert_int_equal(made->plan.n, 4);
  assert_int_equal(made->plan.me, 2);
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(zps_peer_rank(&made->plan, i), ranks[i]);
  assert_int_equal(made->plan.hosts[1], made->plan.hosts[2]);
  assert_int_not_equal(made->plan.hosts[0], made->plan.hosts[1]);
  assert_int_equal(made->n_masters, 3);
  assert_int_equal(made->masters[0], 1);
  assert_int_equal(made->masters[1], 2);
  assert_int_equal(made->masters[2], 6);
  zps_peer_tensor_destroy(made);
  free(group);
  group = group_of(two, 4);
  made = create_in("blueconnect", hosts, racks, 8, group, 7);
  assert_int_equal(made->plan.me, 3);
  assert_int_equal(made->plan.n_levels, 0); /* its hosts are in racks of one */
  zps_peer_tensor_destroy(made);
  made = create_in("blueconnect", (const uint32_t[]){9, 9, 0, 1, 9, 9, 2, 3}, racks, 8, group, 7);
  assert_int_equal(made->plan.n_levels, 0); /* rank 3 alone is in rack 0 */
  zps_peer_tensor_destroy(made);
  made = create_in("blueconnect", (const uint32_t[]){9, 9, 0, 1, 9, 9, 2, 3},
                   (const uint32_t[]){5, 5, 0, 1, 5, 5, 0, 1}, 8, group, 7);
  assert_int_equal(made->plan.n_levels, 2);
  assert_memory_equal(made->plan.levels, levels, sizeof levels);
  zps_peer_tensor_destroy(made);
  free(group);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(racks), cmocka_unit_test(no_racks),
                                     cmocka_unit_test(given_levels), cmocka_unit_test(given_hosts),
                                     cmocka_unit_test(groups)};
  return cmocka_run_group_tests_name("where ranks are", tests, NULL, NULL);
}
