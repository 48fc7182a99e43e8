/* job.stats: the costs of a rank's rounds. Tallies are in the tables of `stats` as well. */
#ifndef ZPS_PROTO_CONTROL_STATS_H
#define ZPS_PROTO_CONTROL_STATS_H

#include "common/base/load.h"
#include "common/base/mishaps.h"
#include "common/base/tally.h"
#include "proto/control.h"

/* Adds a member for each counter, the step as a number, and the scheme. Readers take a counter that is left out as 0.
 */
extern const struct zps_fields zps_control_tally;
static inline zps_json *zps_control_tally_write(zps_json *object, const struct zps_tally *tally) {
  return zps_fields_add(object, &zps_control_tally, tally);
}
ZPS_MESSAGE_READER(tally, struct zps_tally)

/* A member of `object` for each count. */
zps_json *zps_control_mishaps_write(zps_json *object, const struct zps_mishaps *mishaps);

/* A tensor's row of job.stats. */
struct zps_tensor_growth {
  uint32_t tensor;
  uint64_t done;           /* rounds of it that the rank has finished in all */
  struct zps_tally growth; /* since its last report */
};
/* `rows`, an array, may be NULL: no memory. Returns it, or NULL. */
ZPS_MESSAGE(growth, struct zps_tensor_growth)
/* `rows`, an array, may be NULL: no memory. Returns it, or NULL. */
static inline zps_json *zps_control_growth_append(zps_json *rows, const struct zps_tensor_growth *growth) {
  return zps_json_append(rows, zps_control_growth_write(growth));
}

/* A round between ranks that has been in flight for a second, as one of its ranks sees it. */
#define ZPS_RANK_ROUNDS_MAX 4u /* The oldest ones. */
#define ZPS_RANK_AWAITED_MAX 16u
struct zps_rank_round {
  uint32_t tensor;
  uint32_t n_ranks; /* 0: the rank waits for no other one. It computes, or waits for its device. */
  uint64_t step, age_ms;
  uint64_t left_ms;                     /* until its deadline */
  uint32_t ranks[ZPS_RANK_AWAITED_MAX]; /* the first ranks that it waits for */
};

struct zps_rank_report {
  uint64_t job_id;
  uint64_t kept_bytes;        /* registered memory in which the rank keeps pushes, in case a server is lost */
  struct zps_mishaps mishaps; /* of it, so far; those of which there are none are not sent */
  struct zps_load load;       /* of its main thread, since the report before this one */
  struct zps_error first;     /* The rank's first error, until it has gone on after it. Code ZPS_OK: none. */
  uint32_t n_rounds;
  struct zps_rank_round rounds[ZPS_RANK_ROUNDS_MAX];
  const zps_json *rows; /* of tensors; borrowed from what zps_control_stats_read() read */
};
/* `rows`, those of tensors, is consumed, and counts in the place of those in `report`. */
zps_json *zps_control_stats_write(const struct zps_rank_report *report, zps_json *rows);
ZPS_MESSAGE_READER(stats, struct zps_rank_report)

#endif
