/* Memory that the trainer has registered: ranges that arrays must fit into, and that must not go while they are used.
 */
#ifndef ZPS_WORKER_API_REGISTERED_H
#define ZPS_WORKER_API_REGISTERED_H

#include <stddef.h>

#include "common/base/err.h"
#include "zenps/zenps.h"

struct zps_worker_range;

/* The registered ranges that a round's arrays are in. */
struct zps_memory_use {
  struct zps_worker_range **ranges;
  unsigned n;
  uint64_t capacity;
};

/* Under the job's lock, as the next one: notes that an array is in use. ZPS_ERR_NOMEM; ZPS_ERR_INVALID where it reaches
 * beyond the range it begins in, or that is of other memory. `what` names it. */
zps_err_t zps_worker_memory_use(struct zenps_job *job, struct zps_memory_use *use, zenps_memory_t memory,
                                const void *at, size_t len_bytes, const char *what,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* It no longer is. */
void zps_worker_memory_unuse(struct zps_memory_use *use);
void zps_worker_memory_fini(struct zenps_job *job);

#endif
