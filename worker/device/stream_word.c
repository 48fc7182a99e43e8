#include "worker/device/stream_word.h"

#include <stdlib.h>

enum { BLOCK_WORDS = 256, WORD_BYTES = 64 }; /* one a cache line: the device polls it */

struct zps_words_block {
  struct zps_words_block *next;
  void *pinned;
  struct zps_word words[BLOCK_WORDS];
};

void zps_words_init(struct zps_words *words, struct zps_device *device) {
  *words = (struct zps_words){.device = device};
  pthread_mutex_init(&words->lock, NULL);
}

void zps_words_fini(struct zps_words *words) {
  for (struct zps_words_block *block = words->blocks, *next; block; block = next) {
    next = block->next;
    words->device->ops->release(words->device, ZPS_MEMORY_PINNED, block->pinned);
    free(block);
  }
  pthread_mutex_destroy(&words->lock);
}

/* Under the lock. */
static zps_err_t grow(struct zps_words *words, struct zps_error *error) {
  struct zps_words_block *const block = calloc(1, sizeof *block);
  if (!block) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for words that streams wait for");
  const zps_err_t code =
      words->device->ops->allocate(words->device, ZPS_MEMORY_PINNED, BLOCK_WORDS * WORD_BYTES, &block->pinned, error);
  if (code != ZPS_OK) {
    free(block);
    return code;
  }
  for (unsigned i = 0; i < BLOCK_WORDS; i++) {
    struct zps_word *const word = &block->words[i];
    word->at = (uint32_t *)(void *)((char *)block->pinned + (size_t)i * WORD_BYTES);
    *word->at = 0;
    word->next = words->spare;
    words->spare = word;
  }
  block->next = words->blocks;
  words->blocks = block;
  return ZPS_OK;
}

zps_err_t zps_words_take(struct zps_words *words, struct zps_word **word_p, struct zps_error *error) {
  pthread_mutex_lock(&words->lock);
  const zps_err_t code = words->spare ? ZPS_OK : grow(words, error);
  if (code == ZPS_OK) {
    struct zps_word *const word = words->spare;
    words->spare = word->next;
    word->value++;
    *word_p = word;
  }
  pthread_mutex_unlock(&words->lock);
  return code;
}

void zps_words_set(struct zps_words *words, struct zps_word *word) {
  if (!word) return;
  pthread_mutex_lock(&words->lock);
  __atomic_store_n(word->at, word->value, __ATOMIC_RELEASE);
  word->next = words->spare;
  words->spare = word;
  pthread_mutex_unlock(&words->lock);
}
