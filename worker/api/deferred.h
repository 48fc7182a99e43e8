/*
 * Allreduces under auto that cannot begin yet, since ranks have not agreed on the scheme that their step runs as, or
 * their gradient is still to be looked at. The job's thread for what waits (deferred_thread.h) takes part in the
 * agreement, and begins the rounds in the order of the calls once the scheme is known. So zenps_allreduce() returns at
 * once.
 */
#ifndef ZPS_WORKER_API_DEFERRED_H
#define ZPS_WORKER_API_DEFERRED_H

#include "worker/api/operation.h"
#include "worker/choice/auto.h"

/* The following under the job's lock. Whether calls of the tensor's wait. */
bool zps_deferred_has(const struct zenps_tensor *tensor);
/* An allreduce of the trainer's tensor: `turn` is what zps_automatic_look() said of it, `given` as the caller has it,
 * `operation` with gradient and result as the round is given them. Its parts become the request's. */
zenps_status_t zps_deferred_add(struct zenps_tensor *tensor, const struct zps_automatic_turn *turn,
                                const struct zps_operation *given, const struct zps_operation *operation,
                                zenps_request_t **request_p);

#endif
