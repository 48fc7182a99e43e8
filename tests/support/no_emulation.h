/* main() of a program that needs the emulated GPU, in a build without one: a test that is skipped. */
#ifndef ZPS_TESTS_SUPPORT_NO_EMULATION_H
#define ZPS_TESTS_SUPPORT_NO_EMULATION_H

static void test_no_emulation(void **state) {
  (void)state;
  skip();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_emulation)};
  return cmocka_run_group_tests_name("no emulation", tests, NULL, NULL);
}

#endif
