#include "common/base/did_you_mean.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LEN_MAX = 63 }; /* longer words are not compared */

static bool alike(char a, char b) {
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static unsigned least(unsigned a, unsigned b) {
  return a < b ? a : b;
}

/* Damerau and Levenshtein's, of neighbours that are swapped once. Lengths are at most LEN_MAX. */
static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len) {
  unsigned rows[3][LEN_MAX + 1], *above = rows[0], *last = rows[1], *row = rows[2];
  for (size_t j = 0; j <= b_len; j++) last[j] = above[j] = (unsigned)j;
  for (size_t i = 1; i <= a_len; i++) {
    row[0] = (unsigned)i;
    for (size_t j = 1; j <= b_len; j++) {
      row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + !alike(a[i - 1], b[j - 1]));
      if (i > 1 && j > 1 && alike(a[i - 1], b[j - 2]) && alike(a[i - 2], b[j - 1]))
        row[j] = least(row[j], above[j - 2] + 1);
    }
    unsigned *const spare = above;
    above = last;
    last = row;
    row = spare;
  }
  return last[b_len];
}

void zps_near_begin(struct zps_near *near, const char *typed, size_t len) {
  *near = (struct zps_near){.typed = typed, .len = len};
}

void zps_near_try(struct zps_near *near, const char *word) {
  const size_t len = strlen(word), longer = len > near->len ? len : near->len;
  if (near->len == 0 || longer > LEN_MAX) return;
  const size_t wrong = distance(near->typed, near->len, word, len);
  const size_t apart = wrong * (LEN_MAX + 1) + (len > near->len ? len - near->len : near->len - len);
  if (wrong > longer / 3 || (near->word && apart > near->distance)) return;
  near->tied = near->word && apart == near->distance && (near->tied || strcmp(word, near->word) != 0);
  near->word = word;
  near->distance = apart;
}

const char *zps_near_word(const struct zps_near *near) {
  return near->tied ? NULL : near->word;
}

const char *zps_near_say(const struct zps_near *near, const char *before, const char *after, char *text, size_t size) {
  const char *const word = zps_near_word(near);
  snprintf(text, size, "%s%s%s", word ? before : "", word ? word : "", word ? after : "");
  return text;
}
