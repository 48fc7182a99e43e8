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

#endif
