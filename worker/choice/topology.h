/* A scheme between ranks where the ranks are: hosts, racks, levels, and the masters that push for their hosts. */
#ifndef ZPS_WORKER_CHOICE_TOPOLOGY_H
#define ZPS_WORKER_CHOICE_TOPOLOGY_H

#include "worker/choice/scheme_ask.h"
#include "worker/control/membership.h"
#include "worker/peer/tensor.h"

struct zenps_group;

/* Called once it is known where the ranks are. `group` NULL: all of them take part. */
zps_err_t zps_peer_tensor_create(const struct zps_scheme_ask *ask, const struct zps_join_peers *peers, uint32_t me,
                                 const struct zenps_group *group, struct zps_peer_tensor **scheme_p,
                                 struct zps_error *error) ZPS_MUSTCHECK;
void zps_peer_tensor_destroy(struct zps_peer_tensor *scheme); /* NULL is allowed */

#endif
