/*
 * The rule of the late rank, for `stats` and `why`. A rank's lag in a round is the time from the first rank's push to
 * its own. Its lateness is the sum of its lags over all tensors of the job, those of zenps itself too: where a barrier
 * or another tensor comes first, the lags lie there. Its share of the time is divided by the number of rounds in flight
 * at a time, since rounds that overlap wait together. One rank of a job is late at most: the one with the greatest
 * lateness. It is late from ZPS_LATE_PERCENT of the time on, and from ZPS_LATE_FACTOR times the median of the others
 * on.
 */
#ifndef ZPS_SERVER_CTL_LATE_H
#define ZPS_SERVER_CTL_LATE_H

#include "common/control/json.h"

/* Members of a row; 0 or "" where there is no such member, or no row. */
static inline double number(const zps_json *row, const char *key) {
  return row ? zps_json_opt_real(row, key, 0) : 0;
}

static inline const char *text(const zps_json *row, const char *key) {
  return row ? zps_json_opt_str(row, key, "") : "";
}

#define ZPS_LATE_PERCENT 20
#define ZPS_LATE_FACTOR 2
#define ZPS_LATE_SAY_IT(number) #number
#define ZPS_LATE_SAY(number) ZPS_LATE_SAY_IT(number)
/* The rule, for people. */
#define ZPS_LATE_RULE \
  "The late rank: LATE/% is the share of the time that the others waited for a rank's pushes, over all tensors "    \
  "of its job, also @... ones, by rounds in flight at a time. The rank with the largest share is late, if that is " ZPS_LATE_SAY(          \
      ZPS_LATE_PERCENT) "% or more, and " ZPS_LATE_SAY(ZPS_LATE_FACTOR) " times the median of the other ranks or "  \
                                                                       "more. zenpsctl why goes by the same rule."

/* One rank of one job. Texts are those of the answers. */
struct zps_late_rank {
  const char *job, *job_id, *tensor; /* tensor: the one with most of it */
  double rank, late_s, most_s;
  double n_without; /* rounds that a quorum closed without it */
  double share;     /* of the time: 1 is all of it */
  bool is_late;
};

struct zps_late_ranks {
  size_t n;
  struct zps_late_rank *ranks;
};

/* Of all jobs in `now`, an answer to `stats`: since `before`, another one, `seconds` older; or with NULL, since a
 * tensor of the job was opened. Empty where there are no lags, and without memory. */
struct zps_late_ranks zps_late_find(const zps_json *now, const zps_json *before, double seconds);
void zps_late_fini(struct zps_late_ranks *late);
/* NULL: nothing is known of it. `job_id` NULL: any run of this name. */
const struct zps_late_rank *zps_late_of(const struct zps_late_ranks *late, const char *job, const char *job_id,
                                        double rank);

/* The median of the values but the one at `without`; n > 1. 0 without memory. */
double zps_ctl_median(const double *values, size_t n, size_t without);

#endif
