/* A plain text as word numbers: words are runs of letters, in lower case; number 0 is the most frequent one. */
#ifndef ZPS_EXAMPLES_CORPUS_H
#define ZPS_EXAMPLES_CORPUS_H

#include <stdint.h>

#include "common/base/err.h"

struct corpus {
  uint64_t n_tokens;
  uint32_t *tokens; /* rare words are left out */
  uint32_t n_words;
  char **words;     /* by number */
  uint64_t *counts; /* by number */
};

/* Keeps words that occur at least `min_count` times, at most `max_words` of them. The result depends on the file alone,
 * so every rank numbers words alike. */
zps_err_t corpus_read(const char *path, uint64_t min_count, uint64_t max_words, struct corpus *corpus,
                      struct zps_error *error) ZPS_MUSTCHECK;
void corpus_free(struct corpus *corpus);

#endif
