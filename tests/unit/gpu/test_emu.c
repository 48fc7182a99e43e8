/* The emulation of device kernels runs right kernels right, and reports the fault of wrong ones. */
#include <stdio.h>

#ifndef ZPS_HAVE_EMU
int main(void) {
  puts("1..0 # SKIP no C++17 compiler: kernels are not emulated");
  return 0;
}
#else
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/gpu/emu/control.h"
#include "tests/unit/gpu/emu_kernels.h"

enum { SEEDS = 20 };

static int setup(void **state) {
  (void)state;
  zps_emu_seed(1);
  return zps_emu_take_error() ? -1 : 0;
}

static void blocks_look_back(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    zps_emu_seed(seed);
    const uint32_t n_tiles = 1 + (uint32_t)seed * 7;
    const uint64_t n = n_tiles * 256ull;
    assert_int_equal(emu_look_back(n_tiles), n * (n + 1) / 2);
    assert_null(zps_emu_take_error());
  }
}

static void lost_updates_show(void **state) {
  (void)state;
  unsigned n_lost = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    zps_emu_seed(seed);
    assert_int_equal(emu_count(true, 1024), 1024);
    n_lost += emu_count(false, 1024) < 1024;
  }
  assert_int_equal(n_lost, SEEDS);
}

static void a_missing_barrier_shows(void **state) {
  (void)state;
  unsigned n_wrong = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    zps_emu_seed(seed);
    assert_int_equal(emu_share(true), 255 * 128);
    n_wrong += emu_share(false) != 255 * 128;
  }
  assert_true(n_wrong > SEEDS / 2);
}

static void a_seed_repeats_itself(void **state) {
  (void)state;
  zps_emu_seed(7);
  const uint32_t first = emu_count(false, 1024);
  const uint64_t before = zps_emu_switches();
  zps_emu_seed(7);
  assert_int_equal(emu_count(false, 1024), first);
  const uint64_t n = zps_emu_switches() - before;
  zps_emu_seed(7);
  assert_int_equal(emu_count(false, 1024), first);
  assert_int_equal(zps_emu_switches() - before, 2 * n);
}

static void mistakes_are_named(void **state) {
  (void)state;
  static const char *const texts[] = {
      [EMU_BARRIER_SKIPPED] = "have returned",  [EMU_BARRIERS_DIFFER] = "others wait at that in line",
      [EMU_LANE_MISSING] = "__ballot_sync",     [EMU_LANE_OUTSIDE] = "which it is not among",
      [EMU_COLLECTIVES_DIFFER] = "__shfl_sync", [EMU_SOURCE_OUTSIDE] = "reads lane 20",
      [EMU_ENDLESS] = "no end in sight",        [EMU_GRID_TOO_LARGE] = "cannot be launched",
  };
  zps_emu_limit_turns(100000);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++) {
      zps_emu_seed(seed);
      emu_mistake((enum emu_mistake)i);
      const char *const error = zps_emu_take_error();
      assert_non_null(error);
      const bool is_named = strstr(error, texts[i]) || (i == EMU_BARRIER_SKIPPED && strstr(error, "while others wait"));
      if (!is_named) fail_msg("mistake %u: %s", i, error);
      assert_non_null(strstr(error, "mistake_kernel"));
      /* Later kernels run well. */
      assert_int_equal(emu_count(true, 512), 512);
    }
  }
}

static void an_error_stops_what_follows(void **state) {
  (void)state;
  emu_mistake(EMU_LANE_MISSING);
  assert_int_not_equal(emu_count(true, 512), 512);
  assert_non_null(zps_emu_take_error());
  assert_int_equal(emu_count(true, 512), 512);
}

/* Runs `what` in a child; whether it died of a memory fault. */
static bool faults(void (*what)(void *), void *ctx) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    what(ctx);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

static void touch(void *at) {
  *(volatile char *)at = 1;
}

static void read_inside(void *ctx) {
  (void)ctx;
  emu_read_device(1000, 999);
}

static void read_beyond(void *ctx) {
  (void)ctx;
  emu_read_device(1000, 1000);
}

static void device_memory_is_out_of_reach(void **state) {
  (void)state;
  void *const memory = emu_device_memory(1000);
  assert_non_null(memory);
  assert_true(zps_emu_is_device(memory));
  assert_true(zps_emu_is_device((char *)memory + 3999));
  assert_false(zps_emu_is_device((char *)memory + 4000));
  assert_false(zps_emu_is_device(&memory));
  assert_true(faults(touch, memory));
  assert_false(faults(read_inside, NULL));
  assert_true(faults(read_beyond, NULL));
  emu_device_free(memory);
}

/* Two writers of one slot: only a read-back after all writes finds the writer that was overwritten. */
static void read_back_must_wait_for_all(void **state) {
  (void)state;
  unsigned n_blind = 0, n_at_once = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    zps_emu_seed(seed);
    n_blind += emu_claim(EMU_CLAIM_BLINDLY, 2048, 64) > 0;
    n_at_once += emu_claim(EMU_CLAIM_AT_ONCE, 2048, 64) > 0;
    assert_int_equal(emu_claim(EMU_CLAIM_AFTER_ALL, 2048, 64), 0);
  }
  assert_int_equal(n_blind, SEEDS);
  assert_true(n_at_once > SEEDS / 2);
  assert_null(zps_emu_take_error());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(blocks_look_back, setup),
      cmocka_unit_test_setup(lost_updates_show, setup),
      cmocka_unit_test_setup(a_missing_barrier_shows, setup),
      cmocka_unit_test_setup(a_seed_repeats_itself, setup),
      cmocka_unit_test_setup(mistakes_are_named, setup),
      cmocka_unit_test_setup(an_error_stops_what_follows, setup),
      cmocka_unit_test_setup(device_memory_is_out_of_reach, setup),
      cmocka_unit_test_setup(read_back_must_wait_for_all, setup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
