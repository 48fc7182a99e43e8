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
  zps_owners_reassign(owners, n_parts, false, n_servers, n_servers, lost, found);
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

static void check_free(uint32_t n_began, const uint32_t *owners, const bool *lost, const uint32_t *wanted,
                       uint32_t n_parts, uint32_t n_servers) {
  uint32_t found[16];
  zps_owners_reassign(owners, n_parts, false, n_began, n_servers, lost, found);
  for (uint32_t part = 0; part < n_parts; part++) assert_int_equal(found[part], wanted[part]);
}

/* Partitions of places that nobody has taken yet are dealt to those that are there in turn, also one by one. */
static void test_free_places(void **state) {
  (void)state;
  static const uint32_t owners[] = {0, 1, 2, 3, 0, 1, 2, 3};
  const bool two_of_four[] = {false, false, true, true}, began_lost[] = {true, false, false, true};
  check_free(2, owners, two_of_four, (uint32_t[]){0, 1, 0, 1, 0, 1, 0, 1}, 8, 4);
  check_free(2, (uint32_t[]){2}, two_of_four, (uint32_t[]){0}, 1, 4);
  check_free(2, (uint32_t[]){3}, two_of_four, (uint32_t[]){1}, 1, 4);
  check_free(2, (uint32_t[]){3, 3, 3}, two_of_four, (uint32_t[]){1, 0, 1}, 3, 4);
  check_free(2, (uint32_t[]){3}, (bool[]){false, false, false, true}, (uint32_t[]){1}, 1, 4); /* one has come */
  check_free(2, (uint32_t[]){0}, began_lost, (uint32_t[]){1}, 1, 4);
  check_free(2, (uint32_t[]){3, 0}, began_lost, (uint32_t[]){1, 2}, 2, 4);
  check_free(2, (uint32_t[]){3}, (bool[]){false, true, true, true}, (uint32_t[]){0}, 1, 4); /* around */
}

/* The rule as its words say it. */
static uint32_t slow(const uint32_t *owners, uint32_t n_parts, uint32_t n_began, uint32_t n_servers, const bool *lost,
                     uint32_t part) {
  uint32_t n_owned[8] = {0}, best = 0;
  for (uint32_t p = 0; p < n_parts; p++) n_owned[owners[p]]++;
  for (uint32_t p = 0; p <= part; p++) {
    best = owners[p];
    if (!lost[best]) continue;
    const uint32_t from = owners[p] < n_began ? 0 : owners[p] % n_began;
    best = n_servers;
    for (uint32_t i = 0; i < n_servers; i++) {
      const uint32_t server = (from + i) % n_servers;
      if (!lost[server] && (best == n_servers || n_owned[server] < n_owned[best])) best = server;
    }
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
    const uint32_t n_began = rand() % 2 ? n_servers : 1 + (uint32_t)rand() % n_servers;
    for (uint32_t part = 0; part < n_parts; part++)
      owners[part] = (uint32_t)rand() % (1 + (uint32_t)rand() % n_servers); /* uneven */
    for (uint32_t server = 0; server < n_servers; server++) lost[server] = rand() % 2;
    lost[(uint32_t)rand() % n_servers] = false;
    zps_owners_reassign(owners, n_parts, false, n_began, n_servers, lost, found);
    for (uint32_t part = 0; part < n_parts; part++)
      assert_int_equal(found[part], slow(owners, n_parts, n_began, n_servers, lost, part));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_free_places),
                                     cmocka_unit_test(test_as_the_words_say)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
