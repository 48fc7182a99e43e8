/*
 * The tables of records, and what membership has and takes for them. The name of a table is the record's member "what".
 * X_of() fills the zeroed struct of table X for the writer, and returns it. *list_p is memory that the struct points
 * to, for the caller to free(). NULL: no memory. X_restore() gives membership what the table has read.
 * ZPS_ERR_PROTOCOL: it does not fit the records before it.
 */
#ifndef ZPS_SERVER_COORDINATOR_RECORDS_IMPL_H
#define ZPS_SERVER_COORDINATOR_RECORDS_IMPL_H

#include "proto/control_job.h"
#include "proto/control_tensor.h"
#include "server/coordinator/records.h"

/* records_job.c */
extern const struct zps_fields zps_record_job;
const void *zps_record_job_of(const struct zps_member_job *job, void *room, void **list_p);
zps_err_t zps_record_job_restore(struct zps_members *members, void *read, uint64_t now_ns) ZPS_MUSTCHECK;
/* States of ranks by name. "?": there is none. */
const char *zps_record_rank_state(unsigned state);

/* records_tensor.c */
extern const struct zps_fields zps_record_tensor;
const void *zps_record_tensor_of(const struct zps_member_tensor *tensor, void *room);
zps_err_t zps_record_tensor_restore(struct zps_members *members, const void *read, uint64_t now_ns) ZPS_MUSTCHECK;
const char *zps_record_tensor_state_name(unsigned state);

/* records_group.c: groups, and the seats of elastic jobs. The struct of seats is struct zps_seats_image. */
extern const struct zps_fields zps_record_group, zps_record_seats;
const void *zps_record_group_of(const struct zps_member_note *note, void *room, void **list_p);
zps_err_t zps_record_group_restore(struct zps_members *members, const void *read) ZPS_MUSTCHECK;
const void *zps_record_seats_of(const struct zps_member_elastic *elastic, void *room, void **list_p);

/* records_change.c: changes, which a compacted journal has not. They have one struct. */
extern const struct zps_fields zps_record_server_gone, zps_record_job_failed, zps_record_job_gone, zps_record_job_cause,
    zps_record_rank, zps_record_tensor_state, zps_record_tensor_gone, zps_record_seat;
const void *zps_record_change_of(const struct zps_member_note *note, void *room);
zps_err_t zps_record_change_restore(struct zps_members *members, enum zps_note_type type, const void *read,
                                    uint64_t now_ns) ZPS_MUSTCHECK;
/* records_ended.c. The struct is struct zps_history_record. */
extern const struct zps_fields zps_record_job_ended;
/* After the reader: an origin of zeros, or of which there was none, is not known. */
void zps_record_origin_read(struct zps_origin *origin);
/* Members "rank", "code" and "text": a struct zps_member_cause. */
extern const struct zps_fields zps_record_cause;
/* Members "code" and "text": a struct zps_error. */
extern const struct zps_fields zps_record_why;

#endif
