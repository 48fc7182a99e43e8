/* Options when memory is short: all of them, or none and nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "worker/base/options.h"

static zps_err_t options_create(void *ctx) {
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  given.coordinator = "host:1";
  given.job = "run";
  given.provider = "tcp";
  given.interface = "eth0";
  given.subnet = "10.0.0.0/8";
  return zps_worker_options_load(&given, ctx, NULL);
}

static void options_destroy(void *ctx) {
  zps_worker_options_fini(ctx);
}

static void options(void **state) {
  (void)state;
  struct zps_worker_options loaded;
  oom_sweep(options_create, options_destroy, &loaded, 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(options)};
  return cmocka_run_group_tests_name("options without memory", tests, NULL, NULL);
}
