/* A rank of a job, and the way to it. */
#ifndef ZPS_SERVER_SHARD_MEMBER_H
#define ZPS_SERVER_SHARD_MEMBER_H

#include "common/net/bulk.h"
#include "common/session/link.h"
#include "proto/control_job.h"
#include "server/shard/machine.h"

struct zps_job;
struct zps_tensor;

struct zps_member {
  struct zps_net_peer *peer;
  struct zps_link *link; /* NULL: gone */
  struct zps_bulk_peer *bulk;
  struct zps_job *job;
  uint32_t rank;
  uint32_t tag; /* of its short headers */
  bool has_tag;
  bool is_failing; /* cannot be talked to; becomes gone with the next tick */
  bool is_unheard; /* since the servers changed: it may know sums of other servers, and not have reported them */
  zps_err_t gone_code;
  char *gone_text;
};

/* Before it, `job` and `rank` are set, and all else is zero. A member that failed to connect is ended as any other. */
zps_err_t zps_member_connect(struct zps_member *member, const struct zps_member_spec *spec,
                             struct zps_error *error) ZPS_MUSTCHECK;
void zps_member_disconnect(struct zps_member *member); /* again: nothing to do */
void zps_member_fini(struct zps_member *member);
/* The event that the round of a step gets for a member that is gone. Ranks leave a job that has failed: the rounds that
 * they leave open failed for the rank that was lost. */
struct zps_shard_machine_event zps_member_gone_event(const struct zps_member *member, const struct zps_tensor *tensor,
                                                     uint64_t step);
/* The rank cannot be talked to; takes effect with the next tick, because it may be found out in the middle of anything.
 */
void zps_member_fail(struct zps_member *member, zps_err_t code, const char *text);
void zps_member_send(struct zps_member *member, struct zps_frame *frame);

#endif
