#include "worker/examples/corpus.h"

#include <ctype.h>
#include <math.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "worker/tools/lines.h"

enum { WORD_BYTES = 64 };

/* While reading: each distinct word, in order of first appearance, found through a search tree. */
struct word_entry {
  char word[WORD_BYTES];
  uint64_t count;
  uint32_t number; /* by first appearance, then by frequency */
};

struct reader {
  void *tree;
  struct word_entry **entries;
  uint32_t n_entries;
  uint64_t capacity;
  uint32_t *tokens;
  uint64_t n_tokens, tokens_capacity;
};

static int compare_words(const void *a, const void *b) {
  return strcmp(((const struct word_entry *)a)->word, ((const struct word_entry *)b)->word);
}

/* Most frequent first; equally frequent ones by spelling. */
static int compare_counts(const void *a, const void *b) {
  const struct word_entry *x = *(struct word_entry *const *)a, *y = *(struct word_entry *const *)b;
  if (x->count != y->count) return x->count < y->count ? 1 : -1;
  return strcmp(x->word, y->word);
}

static bool add_word(struct reader *reader, const char *word) {
  struct word_entry probe;
  memcpy(probe.word, word, WORD_BYTES);
  struct word_entry **found = tfind(&probe, &reader->tree, compare_words);
  if (!found) {
    if (!zps_enlarge_for_one(&reader->entries, &reader->capacity, reader->n_entries, 4096, sizeof *reader->entries))
      return false;
    struct word_entry *entry = malloc(sizeof *entry);
    if (!entry) return false;
    *entry = probe;
    entry->count = 0;
    entry->number = reader->n_entries;
    reader->entries[reader->n_entries++] = entry;
    found = tsearch(entry, &reader->tree, compare_words);
    if (!found) return false;
  }
  if (!zps_enlarge_for_one(&reader->tokens, &reader->tokens_capacity, reader->n_tokens, 65536, sizeof *reader->tokens))
    return false;
  (*found)->count++;
  reader->tokens[reader->n_tokens++] = (*found)->number;
  return true;
}

static bool add_line(struct reader *reader, const char *line) {
  char word[WORD_BYTES] = {0};
  size_t len = 0;
  for (const unsigned char *c = (const unsigned char *)line;; c++) {
    if (isalpha(*c) || *c >= 0x80) { /* bytes of UTF-8 letters count as letters */
      if (len < WORD_BYTES - 1) word[len++] = (char)tolower(*c);
      continue;
    }
    if (len > 0) {
      memset(word + len, 0, WORD_BYTES - len);
      if (!add_word(reader, word)) return false;
      len = 0;
    }
    if (*c == '\0') return true;
  }
}

/* Renumbers by frequency and drops what is too rare. */
static bool finish(struct reader *reader, uint64_t min_count, uint64_t max_words, struct corpus *corpus) {
  uint32_t *renumbered = malloc((reader->n_entries + 1ull) * sizeof *renumbered);
  if (!renumbered) return false;
  qsort(reader->entries, reader->n_entries, sizeof(struct word_entry *), compare_counts);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < reader->n_entries; i++) {
    const struct word_entry *entry = reader->entries[i];
    renumbered[entry->number] = entry->count >= min_count && kept < max_words ? kept++ : UINT32_MAX;
  }
  corpus->words = calloc(kept + 1ull, sizeof *corpus->words);
  corpus->counts = calloc(kept + 1ull, sizeof *corpus->counts);
  bool ok = corpus->words && corpus->counts;
  for (uint32_t i = 0; ok && i < kept; i++) {
    corpus->words[i] = strdup(reader->entries[i]->word);
    corpus->counts[i] = reader->entries[i]->count;
    corpus->n_words++;
    ok = corpus->words[i] != NULL;
  }
  for (uint64_t i = 0; i < reader->n_tokens; i++) {
    const uint32_t number = renumbered[reader->tokens[i]];
    if (number != UINT32_MAX) reader->tokens[corpus->n_tokens++] = number;
  }
  corpus->tokens = reader->tokens;
  reader->tokens = NULL;
  free(renumbered);
  return ok;
}

static void keep_node(void *node) {
  (void)node; /* entries are freed through the array */
}

zps_err_t corpus_read(const char *path, uint64_t min_count, uint64_t max_words, struct corpus *corpus,
                      struct zps_error *error) {
  struct reader reader = {.tree = NULL};
  struct zps_tools_lines *lines;
  *corpus = (struct corpus){.n_tokens = 0};
  zps_err_t code = zps_tools_lines_open(path, &lines, error);
  if (code != ZPS_OK) return code;
  char *line;
  size_t len;
  while ((code = zps_tools_lines_next(lines, &line, &len, error)) == ZPS_OK)
    if (!add_line(&reader, line)) break;
  zps_tools_lines_close(lines);
  if (code == ZPS_ERR_CLOSED)
    code = finish(&reader, min_count, max_words, corpus) ? ZPS_OK : ZPS_ERR_NOMEM;
  else if (code == ZPS_OK)
    code = ZPS_ERR_NOMEM;
  if (code == ZPS_ERR_NOMEM) zps_fail(error, code, "out of memory reading %s", path);
  tdestroy(reader.tree, keep_node);
  for (uint32_t i = 0; i < reader.n_entries; i++) free(reader.entries[i]);
  free(reader.entries);
  free(reader.tokens);
  if (code == ZPS_OK && corpus->n_words < 2)
    code = zps_fail(error, ZPS_ERR_INVALID,
                    "%s: fewer than two words occur %llu times; give a longer text or a lower --min-count", path,
                    (unsigned long long)min_count);
  if (code != ZPS_OK) corpus_free(corpus);
  return code;
}

void corpus_subsample(struct corpus *corpus, double threshold, uint64_t seed) {
  const uint64_t n = corpus->n_tokens;
  if (threshold == 0) return;
  corpus->n_tokens = 0;
  for (uint64_t i = 0; i < n; i++) {
    struct zps_rng rng = {zps_hash_mix64(seed) + i};
    const double share = (double)corpus->counts[corpus->tokens[i]] / (double)n;
    if (zps_rng_unit(&rng) < sqrt(threshold / share)) corpus->tokens[corpus->n_tokens++] = corpus->tokens[i];
  }
}

bool corpus_hold_out(struct corpus *corpus) {
  enum { STRETCH = 200, EVERY = 20 };
  uint32_t *held = malloc((corpus->n_tokens / EVERY + STRETCH) * sizeof *held);
  uint64_t n_held = 0;
  if (!held) return false;
  corpus->n_training = 0;
  for (uint64_t i = 0; i < corpus->n_tokens; i++) {
    if (i / STRETCH % EVERY == EVERY - 1) {
      held[n_held++] = corpus->tokens[i];
    } else {
      corpus->tokens[corpus->n_training++] = corpus->tokens[i];
    }
  }
  memcpy(corpus->tokens + corpus->n_training, held, n_held * sizeof *held);
  free(held);
  return true;
}

bool corpus_draw_table(struct corpus *corpus) {
  double total = 0, cumulative = 0;
  corpus->n_drawn = 16ull * corpus->n_words < (1u << 20) ? 1u << 20 : 16ull * corpus->n_words;
  corpus->drawn = malloc(corpus->n_drawn * sizeof *corpus->drawn);
  if (!corpus->drawn) return false;
  for (uint32_t word = 0; word < corpus->n_words; word++) total += pow((double)corpus->counts[word], 0.75);
  uint64_t at = 0;
  for (uint32_t word = 0; word < corpus->n_words; word++) {
    cumulative += pow((double)corpus->counts[word], 0.75);
    const uint64_t end =
        word + 1 == corpus->n_words ? corpus->n_drawn : (uint64_t)(cumulative / total * (double)corpus->n_drawn);
    while (at < end) corpus->drawn[at++] = word;
  }
  return true;
}

void corpus_free(struct corpus *corpus) {
  for (uint32_t i = 0; corpus->words && i < corpus->n_words; i++) free(corpus->words[i]);
  free(corpus->words);
  free(corpus->counts);
  free(corpus->tokens);
  free(corpus->drawn);
  *corpus = (struct corpus){.n_tokens = 0};
}
