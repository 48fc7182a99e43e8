/*
 * Words in pinned memory that streams wait for (stream_wait_word() of gpu/device.h). A word counts: each use waits for
 * its next value, so it can be used anew while a stream has not come to an earlier wait yet, which then passes. Any
 * thread.
 */
#ifndef ZPS_WORKER_DEVICE_STREAM_WORD_H
#define ZPS_WORKER_DEVICE_STREAM_WORD_H

#include <pthread.h>

#include "gpu/device.h"

struct zps_word {
  struct zps_word *next;
  uint32_t *at;   /* pinned */
  uint32_t value; /* its value once it is set */
};

struct zps_words {
  struct zps_device *device;
  pthread_mutex_t lock;
  struct zps_word *spare;
  struct zps_words_block *blocks;
};

void zps_words_init(struct zps_words *words, struct zps_device *device);
/* Streams are through with all waits. */
void zps_words_fini(struct zps_words *words);
zps_err_t zps_words_take(struct zps_words *words, struct zps_word **word_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Lets those pass that wait for it, and gives it back. NULL is allowed. */
void zps_words_set(struct zps_words *words, struct zps_word *word);

#endif
