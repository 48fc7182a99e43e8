/* Who sums which partition after servers were lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/owners.h"

static void check(const uint32_t *owners, const bool *lost, const uint32_t *wanted, uint32_t n_parts,
                  uint32_t n_servers) {
  uint32_t found[16];
  zps_owners_reassign(owners, n_parts, n_servers, lost, found);
  for (uint32_t part = 0; part < n_parts; part++) assert_int_equal(found[part], wanted[part]);
}

static void test_examples(void **state) {
  (void)state;
  static const uint32_t owners[] = {0, 1, 2, 0, 1, 2, 0, 1};
  check(owners, (bool[]){false, false, false}, owners, 8, 3);
  /* Server 2 has two, the others three each: after the first it is level with 0, after the second with 1. */
  check(owners, (bool[]){true, false, false}, (uint32_t[]){2, 1, 2, 1, 1, 2, 2, 1}, 8, 3);
  check(owners, (bool[]){false, true, false}, (uint32_t[]){0, 2, 2, 0, 0, 2, 0, 2}, 8, 3);
  check(owners, (bool[]){true, true, false}, (uint32_t[]){2, 2, 2, 2, 2, 2, 2, 2}, 8, 3);
  check((uint32_t[]){3}, (bool[]){true, false, false, true}, (uint32_t[]){1}, 1, 4); /* one had none */
}

/* The rule as its words say it. */
static uint32_t slow(const uint32_t *owners, uint32_t n_parts, uint32_t n_servers, const bool *lost, uint32_t part) {
  uint32_t n_owned[8] = {0}, best = 0;
  for (uint32_t p = 0; p < n_parts; p++) n_owned[owners[p]]++;
  for (uint32_t p = 0; p <= part; p++) {
    best = owners[p];
    if (!lost[best]) continue;
    for (best = 0; lost[best]; best++) {
    }
    for (uint32_t server = best + 1; server < n_servers; server++)
      if (!lost[server] && n_owned[server] < n_owned[best]) best = server;
    n_owned[best]++;
  }
  return best;
}

static void test_as_the_words_say(void **state) {
  (void)state;
  srand(7);
  for (unsigned round = 0; round < 3000; round++) {
    uint32_t owners[40], found[40];
    bool lost[8];
    const uint32_t n_servers = 1 + (uint32_t)rand() % 8, n_parts = (uint32_t)rand() % 40;
    for (uint32_t part = 0; part < n_parts; part++)
      owners[part] = (uint32_t)rand() % (1 + (uint32_t)rand() % n_servers); /* uneven */
    for (uint32_t server = 0; server < n_servers; server++) lost[server] = rand() % 2;
    lost[(uint32_t)rand() % n_servers] = false;
    zps_owners_reassign(owners, n_parts, n_servers, lost, found);
    for (uint32_t part = 0; part < n_parts; part++)
      assert_int_equal(found[part], slow(owners, n_parts, n_servers, lost, part));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_as_the_words_say)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
