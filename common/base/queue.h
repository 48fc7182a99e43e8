/*
 * A bounded queue of pointers, many producers, many consumers, with an optional wake-up function that runs after each
 * push: the commands of the engine (common/session/engine.c). A mutex guards it: a round passes through it a handful of
 * times, never once per message.
 */
#ifndef ZPS_BASE_QUEUE_H
#define ZPS_BASE_QUEUE_H

#include <stddef.h>

#include "common/base/err.h"

struct zps_queue;

/* `wake` (may be NULL) is called with `ctx` after every push, outside the lock. */
zps_err_t zps_queue_create(size_t capacity, void (*wake)(void *ctx), void *ctx,
                           struct zps_queue **queue_p) ZPS_MUSTCHECK;
/* The queue must be empty of work: items still inside are the caller's to have drained. NULL is allowed. */
void zps_queue_destroy(struct zps_queue *queue);
/* ZPS_ERR_AGAIN when full. `item` must not be NULL. */
zps_err_t zps_queue_push(struct zps_queue *queue, void *item) ZPS_MUSTCHECK;
/* The oldest item, or NULL when empty. Never blocks. */
void *zps_queue_pop(struct zps_queue *queue);

#endif
