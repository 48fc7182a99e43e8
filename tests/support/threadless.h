/*
 * Included by a test that starts no thread, though what it is linked with could: with NO_THREADS among its LDFLAGS a
 * thread that is started all the same ends the program. tests/run.sh leaves such programs out of its part `threads`,
 * where they would take ten times as long and find nothing.
 */
#ifndef ZPS_TESTS_SUPPORT_THREADLESS_H
#define ZPS_TESTS_SUPPORT_THREADLESS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *ctx);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *ctx) {
  (void)thread, (void)attributes, (void)start, (void)ctx;
  fputs("this test starts a thread: take NO_THREADS from its LDFLAGS, and tests/support/threadless.h from its source\n",
        stderr);
  abort();
}

#endif
