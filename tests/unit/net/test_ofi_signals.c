/* Changes to signals by libfabric's libraries are undone, and no other changes. tests/integration/signals.sh has
 * libzenps and the programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dlfcn.h>
#include <string.h>
#include <cmocka.h>

#include "common/net/net.h"
#include "common/net/ofi/signals.h"
#include "tests/support/sanitized.h"

/* Before any constructor of this program or its libraries; and after them, before cmocka takes signals for its tests.
 */
static struct zps_ofi_signals at_start, in_main;
static void picture(void) {
  zps_ofi_signals_save(&at_start);
}
__attribute__((section(".preinit_array"), used)) static void (*const picture_p)(void) = picture;

static void mine(int number) {
  (void)number;
}
static void mine_too(int number) {
  (void)number;
}

static void the_program_starts_with_the_signals_that_it_was_given(void **state) {
  (void)state;
#if defined(SANITIZED_ADDRESS) || defined(SANITIZED_THREAD)
  skip(); /* sanitizers take some themselves */
#else
  for (int i = 1; i < _NSIG; i++) {
    if (in_main.actions[i].sa_handler != at_start.actions[i].sa_handler) fail_msg("signal %d has a handler", i);
  }
#endif
}

static void count_line(void *ctx, const char *text) {
  (void)text;
  ++*(unsigned *)ctx;
}

static void providers_start_without_a_change_of_signals(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "auto"};
  struct zps_ofi_signals before, after;
  unsigned n = 0;
  zps_ofi_signals_save(&before);
  zps_net_list(&config, count_line, &n);
  zps_ofi_signals_save(&after);
  assert_true(n > 0);
  for (int i = 1; i < _NSIG; i++) {
    if (before.actions[i].sa_handler != after.actions[i].sa_handler) fail_msg("signal %d has another handler", i);
  }
}

/* Loads a library that takes `number`, over a handler of the program. */
static void take_over(const char *path, int number, struct zps_ofi_signals *before) {
  struct sigaction action = {.sa_handler = mine, .sa_flags = SA_RESTART};
  sigaddset(&action.sa_mask, SIGUSR1);
  assert_int_equal(sigaction(number, &action, NULL), 0);
  zps_ofi_signals_save(before);
  if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) fail_msg("%s", dlerror());
  assert_int_equal(sigaction(number, NULL, &action), 0);
  assert_ptr_not_equal(action.sa_handler, mine);
}

static void a_handler_of_the_fabrics_gives_way_to_what_was_there(void **state) {
  (void)state;
  struct zps_ofi_signals before;
  struct sigaction now, changed = {.sa_handler = mine_too};
  take_over(FABRICS_TAKER, SIGTERM, &before);
  assert_int_equal(sigaction(SIGHUP, &changed, NULL), 0); /* by another thread, say */
  zps_ofi_signals_restore(&before);
  assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
  assert_ptr_equal(now.sa_handler, mine);
  assert_true(now.sa_flags & SA_RESTART);
  assert_int_equal(sigismember(&now.sa_mask, SIGUSR1), 1);
  assert_int_equal(sigaction(SIGHUP, NULL, &now), 0);
  assert_ptr_equal(now.sa_handler, mine_too);
}

static void a_handler_of_another_library_stays(void **state) {
  (void)state;
  struct zps_ofi_signals before;
  struct sigaction now;
  take_over(OTHER_TAKER, SIGUSR2, &before);
  zps_ofi_signals_restore(&before);
  assert_int_equal(sigaction(SIGUSR2, NULL, &now), 0);
  assert_ptr_not_equal(now.sa_handler, mine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_program_starts_with_the_signals_that_it_was_given),
      cmocka_unit_test(providers_start_without_a_change_of_signals),
      cmocka_unit_test(a_handler_of_the_fabrics_gives_way_to_what_was_there),
      cmocka_unit_test(a_handler_of_another_library_stays),
  };
  zps_ofi_signals_save(&in_main);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
