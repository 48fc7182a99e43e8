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
zps_json *zps_control_group_open_write(const struct zps_group_spec *spec);
zps_err_t zps_control_group_open_read(const zps_json *params, struct zps_group_spec *spec,
                                      struct zps_error *error) ZPS_MUSTCHECK;
/* Frees what the reader has allocated. */
void zps_group_spec_fini(struct zps_group_spec *spec);

/* group.close. The name is borrowed. */
zps_json *zps_control_group_close_write(uint64_t job_id, const char *group);
zps_err_t zps_control_group_close_read(const zps_json *params, uint64_t *job_id_p, const char **group_p,
                                       struct zps_error *error) ZPS_MUSTCHECK;

#endif
