#include "worker/examples/rate.h"

#include <math.h>
#include <stddef.h>

const char *const rate_schedules[] = {"sqrt", "constant", "inverse", "exponential", "bold", NULL};

void rate_begin(struct rate *rate, const struct rate_options *options) {
  *rate = (struct rate){.options = options, .now = options->first, .last_loss = INFINITY};
}

double rate_of(struct rate *rate, uint64_t epoch, double last_loss) {
  const struct rate_options *options = rate->options;
  const double e = (double)epoch;
  switch ((enum rate_schedule)options->schedule) {
    case RATE_SQRT:
      return options->first / sqrt(1 + e);
    case RATE_CONSTANT:
      return options->first;
    case RATE_INVERSE:
      return options->first / (1 + options->decay * e);
    case RATE_EXPONENTIAL:
      return options->first * pow(options->decay, e);
    case RATE_BOLD:
      break;
  }
  if (epoch > 0) rate->now *= last_loss <= rate->last_loss ? 1.05 : options->decay;
  if (epoch > 0) rate->last_loss = last_loss;
  return rate->now;
}
