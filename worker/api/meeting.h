/*
 * The first round of a barrier or broadcast: every rank says what it calls, and all compare.
 *
 * It is a round of "@collective", a tensor of rows of 64 bytes. Row i is the call of the i-th rank. The rows behind
 * these carry what a short broadcast sends, so that it takes one round.
 */
#ifndef ZPS_WORKER_API_MEETING_H
#define ZPS_WORKER_API_MEETING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/api/job.h"

#define ZPS_MEETING_ROW_BYTES 64u
#define ZPS_MEETING_DATA_MAX ((size_t)65536)

/* The ranks that call together: all of the job, or a group. */
struct zps_among {
  struct zenps_job *job;
  struct zenps_group *group; /* NULL: all */
  struct zps_collective *collective;
};

enum zps_call_kind { ZPS_CALL_BARRIER = 1, ZPS_CALL_BROADCAST = 2 };

/* What a rank calls. */
struct zps_call {
  enum zps_call_kind kind;
  uint32_t root; /* number in the job; barrier: 0 */
  uint64_t len;  /* bytes; barrier: 0 */
};

/* Tells the other ranks of `call`. `data`, of at most ZPS_MEETING_DATA_MAX bytes, goes from the root to all others.
 * ZENPS_ERR_SHAPE on every rank where two call other things: then `data` is as it was. Else the ranks' counts of
 * segments become one, the largest. Under the lock of `among->collective`. */
zenps_status_t zps_meeting_hold(const struct zps_among *among, const struct zps_call *call, unsigned char *data,
                                size_t len, bool is_root);

#endif
