/* Messages about groups of a job's ranks: group.open, group.close. */
#ifndef ZPS_PROTO_CONTROL_GROUP_H
#define ZPS_PROTO_CONTROL_GROUP_H

#include "proto/control.h"

/* group.open, of each rank of the group. */
struct zps_group_spec {
  uint64_t job_id;
  char name[ZPS_NAME_MAX + 1];
  const uint32_t *ranks; /* n_ranks of them, ascending; malloc'd by the reader */
  uint32_t n_ranks;
  uint64_t timeout_ms;
};
ZPS_MESSAGE(group_open, struct zps_group_spec)
/* Frees what the reader has allocated. */
static inline void zps_group_spec_fini(struct zps_group_spec *spec) {
  zps_fields_fini(&zps_control_group_open, spec);
}

/* group.close: job_id, and the group's name as text. */
ZPS_MESSAGE(group_close, struct zps_job_call)

#endif
