/*
 * What a process and the one that tests it share: a page, the file that ZPS_MOMENTS_FILE names. Whoever writes `signal`
 * and `name`, then 1 to `armed`, lets the process send itself that signal where it next comes to the moment of that
 * name. chaoslib/moments.py has the same numbers.
 */
#ifndef ZPS_TESTS_CHAOS_MOMENT_H
#define ZPS_TESTS_CHAOS_MOMENT_H

#include <stdatomic.h>

enum { MOMENT_NAME_MAX = 48 };

struct moment_page {
  atomic_uint armed, hit; /* hit: it came there */
  int signal;
  char name[MOMENT_NAME_MAX];
};

#endif
