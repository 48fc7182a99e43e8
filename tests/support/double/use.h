/* Has libfabric load the double: before its first call, in a program that has DOUBLE_PATH from its Makefile fragment.
 */
#ifndef ZPS_TESTS_DOUBLE_USE_H
#define ZPS_TESTS_DOUBLE_USE_H

#include <stdlib.h>

static inline void double_use(const char *name) {
  setenv("FI_PROVIDER_PATH", DOUBLE_PATH, 1);
  setenv("ZPS_DOUBLE", name, 1);
}

/* All bad luck at once that the fabric may have: small queues, refused posts, long messages late, all completions in
 * any order. */
static inline void double_be_unlucky(void) {
  setenv("ZPS_DOUBLE_RX", "16", 1);
  setenv("ZPS_DOUBLE_TX", "8", 1);
  setenv("ZPS_DOUBLE_AGAIN", "50", 1);
  setenv("ZPS_DOUBLE_EAGER", "1000", 1);
  setenv("ZPS_DOUBLE_LATE_US", "200", 1);
  setenv("ZPS_DOUBLE_JITTER_US", "100", 1);
  setenv("ZPS_DOUBLE_MAX_LEN", "8388608", 1); /* rdma_rxe has this limit */
}

#endif
