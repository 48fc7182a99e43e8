/* Small payloads of a round: pieces of several chunks, twice over the same memory, or none where it is short. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "worker/round/arena.h"

static zps_err_t arena_create(void *ctx) {
  struct zps_arena *arena = ctx;
  for (unsigned turn = 0; turn < 2; turn++) {
    unsigned char *before = NULL;
    for (unsigned i = 0; i < 40; i++) {
      unsigned char *piece = zps_arena_get(arena, 4091);
      if (!piece) {
        zps_arena_fini(arena);
        return ZPS_ERR_NOMEM;
      }
      assert_int_equal((uintptr_t)piece % 8, 0);
      memset(piece, (int)i, 4091);
      if (before) assert_int_equal(before[4090], i - 1);
      before = piece;
    }
    zps_arena_reset(arena);
  }
  return ZPS_OK;
}

static void arena_destroy(void *ctx) {
  zps_arena_fini(ctx);
}

static void pieces(void **state) {
  (void)state;
  struct zps_arena arena = {0};
  oom_sweep(arena_create, arena_destroy, &arena, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pieces)};
  return cmocka_run_group_tests_name("a round's arena", tests, NULL, NULL);
}
