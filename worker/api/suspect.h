/* Servers that the data plane cannot reach: the coordinator is told, and decides (proto/PROTOCOL.md, "A server that a
 * rank cannot reach"). */
#ifndef ZPS_WORKER_API_SUSPECT_H
#define ZPS_WORKER_API_SUSPECT_H

struct zenps_job;

/* Once the plane is open, before it is connected. */
void zps_worker_suspect_init(struct zenps_job *job);

#endif
