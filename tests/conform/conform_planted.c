/*
 * Faults of a caller are caught on a double (tests/support/double): by a rule that names the fault, or by a test that
 * fails. This program is common/net/ofi with the faults of plant.h. As a test it starts itself for each fault, with one
 * test of the suite.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conform/conform.h"
#include "tests/support/double/use.h"
#include "tests/support/sanitized.h"

/* `rule` NULL: no rule is broken, and the test fails. */
static const struct fault {
  const char *name, *fabric, *test, *rule;
} faults[] = {
    {"descriptor", "efa", "conform_message_sizes", "descriptor"},
    {"outside", "gni", "conform_message_sizes", "descriptor-range"},
    {"access", "gni", "conform_read_sizes", "descriptor-access"},
    {"touch", "efa", "conform_message_sizes", "send-buffer"},
    {"twice", "cxi", "conform_message_sizes", "targets"},
    {"context", "efa", "conform_message_sizes", "context"},
    {"words", "gni", "conform_message_sizes", "context-words"},
    {"released", "efa", "conform_read_sizes", "registration-in-use"},
    {"order", "cxi", "conform_close_outstanding", "endpoint-first"},
    {"queue-first", "cxi", "conform_close_idle", "close-order"},
    {"endpoint-enable", "cxi", "conform_close_idle", "enabled"},
    {"length", "efa", "conform_shut_while_read", "length"},
    {"unmapped", "cxi", "conform_read_sizes", "mapped"},
    {"wait", "gni", "conform_close_idle", "wait-object"},
#ifndef SANITIZED_THREAD
    {"threads", "efa", "conform_message_stream", "one-thread"},
#endif
    {"enable", "cxi", "conform_read_sizes", NULL},
    {"addresses", "cxi", "conform_read_sizes", NULL}, /* an address for an offset */
    {"addresses", "efa", "conform_read_sizes", NULL}, /* an offset for an address */
    {"none", "efa", "conform_read_sizes", NULL},
    {"none", "cxi", "conform_read_sizes", NULL},
    {"none", "gni", "conform_read_sizes", NULL},
};
enum { N_FAULTS = sizeof faults / sizeof faults[0] };

/* Returns whether the test passed. What it printed goes to `text`. */
static bool run(const struct fault *fault, char *text, size_t size) {
  char command[400];
  size_t len = 0;
  snprintf(command, sizeof command, "ZPS_DOUBLE=%s ZPS_DOUBLE_MAX_LEN=8388608 ZPS_PLANT=%s exec /proc/%d/exe %s 2>&1",
           fault->fabric, fault->name, (int)getpid(), fault->test);
  FILE *const output = popen(command, "r");
  assert_non_null(output);
  while (len < size - 1 && !feof(output) && !ferror(output)) len += fread(text + len, 1, size - 1 - len, output);
  text[len] = '\0';
  const int status = pclose(output);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void is_caught(void **state) {
  static char text[1 << 18]; /* a sanitizer may speak, too */
  char expected[100];
  const struct fault *const fault = *state;
  const bool is_none = strcmp(fault->name, "none") == 0;
  if (run(fault, text, sizeof text) != is_none)
    fail_msg("%s on %s %s: %s", fault->name, fault->fabric, is_none ? "fails" : "is not caught", text);
  if (fault->rule)
    snprintf(expected, sizeof expected, "double %s: rule %s:", fault->fabric, fault->rule);
  else
    snprintf(expected, sizeof expected, "%s 1 - %s", is_none ? "ok" : "not ok", fault->test);
  if (!strstr(text, expected)) fail_msg("\"%s\" is not in: %s", expected, text);
}

int main(int argc, char **argv) {
  static struct conform_target target = {.answers_reads = true, .must_be_there = true};
  target.provider = getenv("ZPS_DOUBLE");
  if (getenv("ZPS_PLANT") && target.provider) {
    double_use(target.provider);
    return conform_main(argc, argv, &target);
  }
  setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 1);
  static char names[N_FAULTS][100];
  struct CMUnitTest tests[N_FAULTS];
  for (size_t i = 0; i < N_FAULTS; i++) {
    snprintf(names[i], sizeof names[i], "%s on %s: %s", faults[i].name, faults[i].fabric,
             faults[i].rule ? faults[i].rule : faults[i].test);
    tests[i] =
        (struct CMUnitTest){.name = names[i], .test_func = is_caught, .initial_state = (void *)(uintptr_t)&faults[i]};
  }
  return cmocka_run_group_tests_name("planted faults", tests, NULL, NULL);
}
