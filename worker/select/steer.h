/*
 * A threshold that is reused and follows its count, so that this is k on average although gradients change: it moves by
 * `gain` of what the count was off. How much a count answers to the threshold depends on the distribution's tail, which
 * is not known: so the gain falls by half when the threshold has gone too far, and grows by half while it has not.
 */
#ifndef ZPS_WORKER_SELECT_STEER_H
#define ZPS_WORKER_SELECT_STEER_H

struct zps_steer { /* all zeros: not used yet */
  double gain, last;
};

/* The next threshold; `share`: the count, as a multiple of k. Twice k counts as much as any more. */
static inline double zps_steer(struct zps_steer *steer, double threshold, double share) {
  const double most = 1.0 / 2, least = 1.0 / 512, first = 1.0 / 16;
  const double off = share < 2 ? share - 1 : 1;
  if (steer->gain <= 0)
    steer->gain = first;
  else if (off * steer->last < 0)
    steer->gain = steer->gain / 2 > least ? steer->gain / 2 : least;
  else if (off * steer->last > 0)
    steer->gain = steer->gain * 1.5 < most ? steer->gain * 1.5 : most;
  steer->last = off;
  return threshold * (1 + steer->gain * off);
}

#endif
