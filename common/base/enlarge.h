/* An array that grows. */
#ifndef ZPS_BASE_ENLARGE_H
#define ZPS_BASE_ENLARGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* `array_p` points to the pointer to an array from malloc() (or NULL): makes it n elements long. False: there is no
 * memory, and the array is as it was. */
static inline bool zps_enlarge(void *array_p, uint64_t n, size_t elem_bytes) {
  void *old;
  memcpy(&old, array_p, sizeof old);
  void *const array = realloc(old, n * elem_bytes);
  if (!array) return false;
  memcpy(array_p, &array, sizeof array);
  return true;
}

/* Makes room for one element more than the n of an array that has room for *cap_p: `first` to begin with, then twice as
 * many. False: there is no memory, and all is as it was. */
static inline bool zps_enlarge_for_one(void *array_p, uint64_t *cap_p, uint64_t n, uint64_t first, size_t elem_bytes) {
  const uint64_t cap = *cap_p ? 2 * *cap_p : first;
  if (n < *cap_p) return true;
  if (!zps_enlarge(array_p, cap, elem_bytes)) return false;
  *cap_p = cap;
  return true;
}

#endif
