/*
 * In the product a settle follows each event, when the coordinator's turn ends. Here each call of an event settles by
 * itself, so a test sees what follows from the event as soon as the call returns.
 */
#ifndef ZPS_TESTS_SUPPORT_SETTLED_H
#define ZPS_TESTS_SUPPORT_SETTLED_H

#include "server/membership/members.h"
#include "server/membership/notes.h"

static inline zps_err_t zps_settled(struct zps_members *members, zps_err_t err) {
  zps_members_settle(members);
  return err;
}

#define ZPS_SETTLED_VOID(members, call) ((call), zps_members_settle(members))

/* A macro is not expanded within itself: each calls the function of its name. */
#define zps_members_server_register(m, ...) zps_settled(m, zps_members_server_register(m, __VA_ARGS__))
#define zps_members_server_drain(m, ...) zps_settled(m, zps_members_server_drain(m, __VA_ARGS__))
#define zps_members_drain_named(m, ...) zps_settled(m, zps_members_drain_named(m, __VA_ARGS__))
#define zps_members_undrain_named(m, ...) zps_settled(m, zps_members_undrain_named(m, __VA_ARGS__))
#define zps_members_resume(m, ...) zps_settled(m, zps_members_resume(m, __VA_ARGS__))
#define zps_members_join(m, ...) zps_settled(m, zps_members_join(m, __VA_ARGS__))
#define zps_members_next(m, ...) zps_settled(m, zps_members_next(m, __VA_ARGS__))
#define zps_members_leave(m, ...) zps_settled(m, zps_members_leave(m, __VA_ARGS__))
#define zps_members_move_on(m, ...) zps_settled(m, zps_members_move_on(m, __VA_ARGS__))
#define zps_members_linked(m, ...) zps_settled(m, zps_members_linked(m, __VA_ARGS__))
#define zps_members_group_open(m, ...) zps_settled(m, zps_members_group_open(m, __VA_ARGS__))
#define zps_members_group_close(m, ...) zps_settled(m, zps_members_group_close(m, __VA_ARGS__))
#define zps_members_tensor_register(m, ...) zps_settled(m, zps_members_tensor_register(m, __VA_ARGS__))
#define zps_members_client_lost(m, ...) ZPS_SETTLED_VOID(m, zps_members_client_lost(m, __VA_ARGS__))
#define zps_members_client_away(m, ...) ZPS_SETTLED_VOID(m, zps_members_client_away(m, __VA_ARGS__))
#define zps_members_job_opened(m, ...) ZPS_SETTLED_VOID(m, zps_members_job_opened(m, __VA_ARGS__))
#define zps_members_tensor_opened(m, ...) ZPS_SETTLED_VOID(m, zps_members_tensor_opened(m, __VA_ARGS__))
#define zps_members_map_answered(m, ...) ZPS_SETTLED_VOID(m, zps_members_map_answered(m, __VA_ARGS__))
#define zps_members_call_dropped(m, ...) ZPS_SETTLED_VOID(m, zps_members_call_dropped(m, __VA_ARGS__))
#define zps_members_job_fail(m, ...) ZPS_SETTLED_VOID(m, zps_members_job_fail(m, __VA_ARGS__))
#define zps_members_drain(m) ZPS_SETTLED_VOID(m, zps_members_drain(m))
#define zps_members_set_min_servers(m, ...) ZPS_SETTLED_VOID(m, zps_members_set_min_servers(m, __VA_ARGS__))

#endif
