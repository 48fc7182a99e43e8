/*
 * What tests leave out where a sanitizer makes them slow; without one they do everything. Built with -DTHIN_NOTHING
 * they do so under sanitizers as well.
 *
 * - thin_skips(): combinations of sizes, types and codes in a build that looks for races between threads: each takes
 *   the threads through the same code, and the thread sanitizer takes ten times as long about it.
 * - thin_skips_alone(): what one thread does alone, in the same build.
 * - THIN_STRIDE, thin_skips_heavy(): for the few tests that take a minute or more under any sanitizer, of the same
 *   code's states in millions of sequences, or of emulated kernels: one of so many.
 * - thin_skips_repeated(), and thin_skips_heavy() again: all but one in ZPS_TESTS_THIN, an environment variable that
 *   scripts set where they repeat what another one runs whole.
 */
#ifndef ZPS_TESTS_SUPPORT_THIN_H
#define ZPS_TESTS_SUPPORT_THIN_H

#include <stdbool.h>
#include <stdlib.h>

#include "tests/support/sanitized.h"

/* Each shares no factor with the numbers of sizes, types or events that they go over, so that each of them has its
 * turn. */
#if defined SANITIZED_THREAD && !defined THIN_NOTHING
#define THIN_TO_ONE_IN 7
#define THIN_ALONE true
#else
#define THIN_TO_ONE_IN 1
#define THIN_ALONE false
#endif
#if (defined SANITIZED_THREAD || defined SANITIZED_ADDRESS) && !defined THIN_NOTHING
#define THIN_STRIDE 7
#define THIN_HEAVY_TO_ONE_IN 3
#else
#define THIN_STRIDE 1
#define THIN_HEAVY_TO_ONE_IN 1
#endif

/* Whether a test leaves out the combination that it has come to. */
static inline bool thin_skips(void) {
  static unsigned n;
  return n++ % THIN_TO_ONE_IN != 0;
}

/* Whether it leaves out what has no other thread to race with. */
static inline bool thin_skips_alone(void) {
  return THIN_ALONE;
}

static inline unsigned thin_to_one_in(unsigned unasked) {
  const char *const asked = getenv("ZPS_TESTS_THIN");
  return asked && atoi(asked) > 0 ? (unsigned)atoi(asked) : unasked;
}

/* thin_skips() for combinations that are heavy under any sanitizer. */
static inline bool thin_skips_heavy(void) {
  static unsigned n;
  return n++ % thin_to_one_in(THIN_HEAVY_TO_ONE_IN) != 0;
}

/* Whether a script that repeats, in other surroundings, what another one runs whole leaves the combination out. */
static inline bool thin_skips_repeated(void) {
  static unsigned n;
  return n++ % thin_to_one_in(1) != 0;
}

#endif
