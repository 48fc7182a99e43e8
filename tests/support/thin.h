/*
 * Fewer combinations of sizes, types and codes in a build that looks for races between threads: each combination takes
 * the threads through the same code, and the thread sanitizer takes ten times as long about it.
 */
#ifndef ZPS_TESTS_SUPPORT_THIN_H
#define ZPS_TESTS_SUPPORT_THIN_H

#include <stdbool.h>

#include "tests/support/sanitized.h"

#ifdef SANITIZED_THREAD
#define THIN_TO_ONE_IN 7 /* shares no factor with the lists of sizes, so that each of them has its turn */
#endif
#ifndef THIN_TO_ONE_IN
#define THIN_TO_ONE_IN 1
#endif

/* Whether a test leaves out the combination that it has come to. */
static inline bool thin_skips(void) {
  static unsigned n;
  return n++ % THIN_TO_ONE_IN != 0;
}

#endif
