/* Schemes between ranks when memory is short: made as a whole, with their remembered state, or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "worker/choice/scheme_ask.h"
#include "worker/choice/topology.h"
#include "worker/control/membership.h"
#include "worker/peer/tensor.h"

enum { WORLD = 2 };

struct making {
  struct zps_scheme_ask ask;
  struct zps_join_peers peers;
  struct zenps_group *group;
  struct zps_peer_tensor *made;
};

static zps_err_t scheme_create(void *ctx) {
  struct making *making = ctx;
  struct zps_error error;
  return zps_peer_tensor_create(&making->ask, &making->peers, 0, making->group, &making->made, &error);
}

static void scheme_destroy(void *ctx) {
  zps_peer_tensor_destroy(((struct making *)ctx)->made);
}

static void sweep(const char *scheme) {
  static struct zps_join_peer ranks[WORLD] = {{.host = "here"}, {.host = "there"}};
  static char name[] = "run";
  const struct zps_worker_options given = {.job = name, .world = WORLD, .local_world = 1};
  struct making making = {.peers = {.world = WORLD, .ranks = ranks}};
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = scheme;
  assert_int_equal(
      zps_scheme_ask_init(&making.ask, &options, &given, "t", 3000, 2, ZPS_DTYPE_F32, ZPS_VALUES_RAW, NULL), ZPS_OK);
  oom_sweep(scheme_create, scheme_destroy, &making, 2);
}

static void stateful(void **state) {
  (void)state;
  sweep("oktopk:k=400");
}

static void of_hosts(void **state) {
  (void)state;
  sweep("hierarchical");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(stateful), cmocka_unit_test(of_hosts)};
  return cmocka_run_group_tests_name("schemes without memory", tests, NULL, NULL);
}
