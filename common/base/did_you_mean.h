/*
 * "Did you mean": the one of several words that a mistyped one is nearest to.
 *
 * Near is at most a third of the letters wrong, left out, too many, or swapped with their neighbour; capitals do not
 * count. Of two words that are equally near, the one of the typed word's length was meant; where length does not tell
 * them apart, none was.
 */
#ifndef ZPS_BASE_DID_YOU_MEAN_H
#define ZPS_BASE_DID_YOU_MEAN_H

#include <stdbool.h>
#include <stddef.h>

struct zps_near {
  const char *typed;
  size_t len; /* of it that counts */
  const char *word;
  size_t distance; /* of it: letters that are wrong, and to tell equals apart, how much the lengths differ */
  bool tied;
};

/* Begins a search for what was meant by the first `len` bytes of `typed`. Words are borrowed as long as it is used. */
void zps_near_begin(struct zps_near *near, const char *typed, size_t len);
void zps_near_try(struct zps_near *near, const char *word);
/* NULL when no word is near, or two are equally. */
const char *zps_near_word(const struct zps_near *near);
/* The question between `before` and `after`, as in zps_near_say(near, ": did you mean '", "'?", ...); empty when there
 * is no such word. Returns `text`. */
const char *zps_near_say(const struct zps_near *near, const char *before, const char *after, char *text, size_t size);

#endif
