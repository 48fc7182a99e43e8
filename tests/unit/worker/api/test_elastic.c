/* Elastic jobs, as far as a rank can tell without the others: after which errors it asks for the next generation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <zenps/elastic.h>

/* Ranks and servers that are gone, or that have gone on without this rank: then its reads fail, too, since servers have
 * closed the job. */
static void test_others_are_gone(void **state) {
  static const zenps_status_t statuses[] = {
      ZENPS_ERR_PEER_LOST, ZENPS_ERR_SERVER_LOST, ZENPS_ERR_CLOSED,  ZENPS_ERR_MISSING,
      ZENPS_ERR_STALE,     ZENPS_ERR_CANCELED,    ZENPS_ERR_TIMEOUT, ZENPS_ERR_FABRIC,
  };
  (void)state;
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) assert_true(zenps_status_recoverable(statuses[i]));
}

/* What the next generation would end with, too. */
static void test_no_other_generation_helps(void **state) {
  static const zenps_status_t statuses[] = {ZENPS_OK,        ZENPS_ERR_INVALID, ZENPS_ERR_SHAPE,
                                            ZENPS_ERR_NOMEM, ZENPS_ERR_REFUSED, ZENPS_ERR_UNSUPPORTED,
                                            ZENPS_ERR_AGAIN, ZENPS_ERR_PROTOCOL};
  (void)state;
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) assert_false(zenps_status_recoverable(statuses[i]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_others_are_gone),
      cmocka_unit_test(test_no_other_generation_helps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
