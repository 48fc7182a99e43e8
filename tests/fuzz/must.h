/* What a fuzz target holds to be so: where it is not, the program ends, and says where. */
#ifndef ZPS_TESTS_FUZZ_MUST_H
#define ZPS_TESTS_FUZZ_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define must(condition)                                                       \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                \
    }                                                                         \
  } while (0)

#endif
