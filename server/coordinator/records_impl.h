/* The records, by what they are of. */
#ifndef ZPS_SERVER_COORDINATOR_RECORDS_IMPL_H
#define ZPS_SERVER_COORDINATOR_RECORDS_IMPL_H

#include "proto/control_job.h"
#include "proto/control_tensor.h"
#include "server/coordinator/records.h"

/* records.c */
/* Writes the error's members; none for ZPS_OK. */
zps_json *zps_record_set_error(zps_json *record, const struct zps_error *why);
/* Reads them. */
void zps_record_get_error(const zps_json *record, struct zps_error *why);
/* What became of a record that membership took, or did not. */
zps_err_t zps_record_fits(zps_err_t err, struct zps_error *error) ZPS_MUSTCHECK;

/* records_job.c */
zps_json *zps_record_job_write(const struct zps_member_note *note);
zps_err_t zps_record_job_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                              struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_failed_write(const struct zps_member_note *note);
zps_err_t zps_record_failed_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                 struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_job_gone_write(const struct zps_member_note *note);
zps_err_t zps_record_job_gone_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                   struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_rank_write(const struct zps_member_note *note);
zps_err_t zps_record_rank_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                               struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_group_write(const struct zps_member_note *note);
zps_err_t zps_record_group_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_seat_write(const struct zps_member_note *note);
zps_err_t zps_record_seat_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                               struct zps_error *error) ZPS_MUSTCHECK;

/* records_seats.c */
zps_json *zps_record_seats_write(const struct zps_member_note *note);
zps_err_t zps_record_seats_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                struct zps_error *error) ZPS_MUSTCHECK;

/* records_expelled.c */
zps_json *zps_record_expelled_write(const struct zps_member_note *note);
zps_err_t zps_record_expelled_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                   struct zps_error *error) ZPS_MUSTCHECK;

/* records_tensor.c */
zps_json *zps_record_tensor_write(const struct zps_member_note *note);
zps_err_t zps_record_tensor_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                 struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_tensor_state_write(const struct zps_member_note *note);
zps_err_t zps_record_tensor_state_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                       struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_record_tensor_gone_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                      struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_record_tensor_gone_write(const struct zps_member_note *note);

#endif
