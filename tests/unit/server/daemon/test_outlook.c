/* Warnings before a daemon stops: when they come, how often, and what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/daemon/outlook.h"
#include "tests/support/logs.h"

#define DAY 86400LL
#define GIB (1ull << 30)

static struct zps_outlook outlook;

/* Looks at these facts, and expects this warning; NULL: none. */
static void look(const struct zps_outlook_facts *facts, const char *warning) {
  logs_start();
  if (warning) logs_expect(ZPS_LOG_WARN, warning);
  zps_outlook_look(&outlook, facts);
  logs_finish();
}

static void test_certificate(void **state) {
  (void)state;
  struct zps_outlook_facts facts = {.now_s = 1000 * DAY, .certificate = "/etc/cert.pem"};
  outlook = (struct zps_outlook){0};
  look(&facts, NULL); /* there is none */
  facts.certificate_ends_s = facts.now_s + 31 * DAY;
  look(&facts, NULL);
  facts.now_s += DAY;
  look(&facts, "certificate /etc/cert.pem ends in 30.0 days");
  facts.now_s += DAY - 1;
  look(&facts, NULL); /* said within a day */
  facts.now_s += 1;
  look(&facts, "ends in 29.0 days");
  facts.now_s += 22 * DAY;
  look(&facts, "ends in 7.0 days");
  facts.now_s += 6 * DAY - 10;
  look(&facts, "ends in 1.0 days");
  facts.now_s += 10;
  look(&facts, "ends in 1.0 days"); /* worse, though it was said just before */
  facts.now_s += DAY;
  look(&facts, "certificate /etc/cert.pem has ended: new connections are refused");
  facts.certificate_ends_s = facts.now_s + 365 * DAY; /* a new one */
  look(&facts, NULL);
  facts.certificate_ends_s = facts.now_s + 5 * DAY;
  look(&facts, "ends in 5.0 days");
}

static void test_disk(void **state) {
  (void)state;
  struct zps_outlook_facts facts = {
      .now_s = 1000 * DAY, .state_dir = "/var/lib/zenps", .disk_bytes = 100 * GIB, .disk_free_bytes = 5 * GIB};
  outlook = (struct zps_outlook){0};
  look(&facts, NULL);
  facts.disk_free_bytes = 4 * GIB;
  look(&facts, "state directory /var/lib/zenps: 4096 MiB are free, 4.0%");
  look(&facts, NULL);
  facts.now_s += DAY;
  look(&facts, "4096 MiB are free");
  facts.disk_free_bytes = 50 * GIB;
  look(&facts, NULL);
  facts.disk_free_bytes = 0;
  look(&facts, "0 MiB are free, 0.0%");
}

static void test_memory(void **state) {
  (void)state;
  struct zps_outlook_facts facts = {.now_s = 1000 * DAY, .memory_limit_bytes = 100 * GIB, .memory_bytes = 90 * GIB};
  outlook = (struct zps_outlook){0};
  look(&facts, NULL);
  facts.memory_bytes = 91 * GIB;
  look(&facts, "memory: 93184 of 102400 MiB (server.memory_limit) are in use");
  look(&facts, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_certificate),
      cmocka_unit_test(test_disk),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
