/*
 * Notes of membership (notes.h) as JSON, one record each, and back. The first record of a journal is its header: whose
 * it is, and in which form.
 */
#ifndef ZPS_SERVER_COORDINATOR_RECORDS_H
#define ZPS_SERVER_COORDINATOR_RECORDS_H

#include "common/control/json.h"
#include "server/membership/notes.h"

/* Version 1 has the servers of a job as several lists, which records_job.c converts. */
#define ZPS_RECORDS_VERSION 2u
#define ZPS_RECORDS_VERSION_OLDEST 1u

/* NULL when memory is short. */
zps_json *zps_record_write(const struct zps_member_note *note);
zps_err_t zps_record_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                          struct zps_error *error) ZPS_MUSTCHECK;

struct zps_record_header {
  uint64_t incarnation;
  uint32_t version;
};
zps_json *zps_record_header_write(const char *cluster, uint64_t incarnation);
/* `cluster` NULL: of any. ZPS_ERR_VERSION: this program cannot read its form. ZPS_ERR_REFUSED: another cluster's state.
 */
zps_err_t zps_record_header_read(const zps_json *record, const char *cluster, struct zps_record_header *header,
                                 struct zps_error *error) ZPS_MUSTCHECK;

/* A journal's records, put together to a membership: by a coordinator at its start, and by zenpsctl state check. */
struct zps_replay {
  struct zps_members *members;     /* Without anybody in it at first. */
  const char *cluster;             /* The cluster of the journal; NULL: any. */
  struct zps_record_header header; /* Once it was read. */
  uint64_t n;                      /* Records that were taken. */
  uint64_t now_ns;
  struct zps_error error; /* Names the first record that was not taken, and says why. */
};

/* A zps_journal_take_fn; `ctx` is a struct zps_replay. */
zps_err_t zps_replay_take(void *ctx, const char *text, size_t len) ZPS_MUSTCHECK;

#endif
