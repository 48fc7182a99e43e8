/*
 * The log under test: a test that provokes warnings or errors says which, all others fail the test.
 *
 *   logs_start();
 *   logs_expect(ZPS_LOG_WARN, "peer 3 is silent");   any line of this level that contains the text, one or more
 *   logs_allow(ZPS_LOG_WARN, "out of memory");       the same, but it need not come
 *   ... what logs it ...
 *   logs_finish();                                    all expected ones came, and nothing else above info
 *
 * Each line has the fields of its subject (log_fields.h).
 *
 * logs_check() is logs_finish() as a group's teardown. Lines may come from any thread. Without logs_start() the log
 * goes to stderr, where tests/support/run-tap.sh fails the program for any warning.
 */
#ifndef ZPS_TESTS_LOGS_H
#define ZPS_TESTS_LOGS_H

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/support/log_fields.h"

enum { LOGS_EXPECTED_MAX = 16 };

/* Written by the sink, which runs under the log's lock, and read when the sink is off. */
static struct {
  struct {
    enum zps_log_level level;
    const char *text;
    bool met;
  } expected[LOGS_EXPECTED_MAX];
  unsigned n_expected, n_unexpected;
  char unexpected[600]; /* the first one */
} logs;

static inline void logs_sink(void *ctx, const struct zps_log_line *line) {
  const char *const fault = log_fields_fault(line);
  (void)ctx;
  if (fault && logs.n_unexpected++ == 0)
    snprintf(logs.unexpected, sizeof logs.unexpected, "without its field '%s': %.500s", fault, line->text);
  for (unsigned i = 0; i < logs.n_expected; i++) {
    if (logs.expected[i].level != line->level || !strstr(line->text, logs.expected[i].text)) continue;
    logs.expected[i].met = true;
    return;
  }
  if (line->level > ZPS_LOG_WARN) return;
  if (logs.n_unexpected++ == 0)
    snprintf(logs.unexpected, sizeof logs.unexpected, "%s: %s: %.500s", zps_log_level_name(line->level),
             line->component, line->text);
}

static inline void logs_start(void) {
  memset(&logs, 0, sizeof logs);
  zps_log_strangers.last_ms = 0; /* whatever the test before it had said */
  zps_log_set_sink(logs_sink, NULL);
}

/* Before the line can come. */
static inline void logs_expect(enum zps_log_level level, const char *text) {
  assert_true(logs.n_expected < LOGS_EXPECTED_MAX);
  logs.expected[logs.n_expected].level = level;
  logs.expected[logs.n_expected++].text = text;
}

static inline void logs_allow(enum zps_log_level level, const char *text) {
  logs_expect(level, text);
  logs.expected[logs.n_expected - 1].met = true;
}

static inline void logs_finish(void) {
  zps_log_set_sink(NULL, NULL);
  if (logs.n_unexpected) fail_msg("%u unexpected log lines, the first: %s", logs.n_unexpected, logs.unexpected);
  for (unsigned i = 0; i < logs.n_expected; i++)
    if (!logs.expected[i].met) fail_msg("nothing logged '%s'", logs.expected[i].text);
}

static inline int logs_check(void **state) {
  (void)state;
  logs_finish();
  return 0;
}

#endif
