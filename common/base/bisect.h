/* Binary search. */
#ifndef ZPS_BASE_BISECT_H
#define ZPS_BASE_BISECT_H

/* Moves `low` to the first place in [low, high) at which the condition on `middle` is false; to `high` if it holds at
 * all of them. It must hold up to some place and at none behind it. Changes both variables. */
#define zps_bisect(low, high, middle, condition)                 \
  while ((low) < (high)) {                                       \
    const __typeof__(low) middle = (low) + ((high) - (low)) / 2; \
    if (condition)                                               \
      (low) = middle + 1;                                        \
    else                                                         \
      (high) = middle;                                           \
  }

#endif
