/* Learning rates from epoch to epoch. */
#ifndef ZPS_EXAMPLES_RATE_H
#define ZPS_EXAMPLES_RATE_H

#include <stdint.h>

enum rate_schedule { RATE_SQRT, RATE_CONSTANT, RATE_INVERSE, RATE_EXPONENTIAL, RATE_BOLD };
extern const char *const rate_schedules[];

struct rate_options {
  double first; /* of epoch 0 */
  double decay;
  int schedule;
};

struct rate {
  const struct rate_options *options; /* borrowed */
  double now, last_loss;
};

void rate_begin(struct rate *rate, const struct rate_options *options);
/* The rate of epoch `epoch`, asked for in their order, after an epoch that ended with `last_loss`, the same on all
 * ranks (ignored for epoch 0). sqrt: first / sqrt(1 + epoch). inverse: first / (1 + decay * epoch). exponential: first
 * * decay^epoch. bold (the "bold driver"): 5% more after a loss that fell, times `decay` after one that grew. */
double rate_of(struct rate *rate, uint64_t epoch, double last_loss);

#endif
