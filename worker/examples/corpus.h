/* A plain text as word numbers: words are runs of letters, in lower case; number 0 is the most frequent one. */
#ifndef ZPS_EXAMPLES_CORPUS_H
#define ZPS_EXAMPLES_CORPUS_H

#include <stdint.h>

#include "common/base/err.h"

struct corpus {
  uint64_t n_tokens;
  uint32_t *tokens; /* rare words are left out */
  uint32_t n_words;
  char **words;        /* by number */
  uint64_t *counts;    /* by number, in the whole file */
  uint64_t n_training; /* after corpus_hold_out(): tokens before the held-out ones, which come last */
  uint32_t *drawn;     /* after corpus_draw_table(): n_drawn words in proportion to count^0.75 */
  uint64_t n_drawn;
};

/* Keeps words that occur at least `min_count` times, at most `max_words` of them. The result depends on the file alone,
 * so every rank numbers words alike. */
zps_err_t corpus_read(const char *path, uint64_t min_count, uint64_t max_words, struct corpus *corpus,
                      struct zps_error *error) ZPS_MUSTCHECK;
/* Drops occurrences of words whose share of the text is above `threshold` (0: none), each by its own draw, as Mikolov
 * et al. do. */
void corpus_subsample(struct corpus *corpus, double threshold, uint64_t seed);
/* Moves every twentieth stretch of the text to the end: held out, and like the rest, wherever the text changes its
 * subject. */
bool corpus_hold_out(struct corpus *corpus);
/* The table from which negative samples are drawn. */
bool corpus_draw_table(struct corpus *corpus);
void corpus_free(struct corpus *corpus);

#endif
