/*
 * Elastic jobs: the ranks of a training run may change while it goes on. One that dies costs the others a step, and
 * they go on in a smaller world; processes that come later are let in at a step boundary.
 *
 * A job whose zenps_options_t has `max_world` (or `min_world`) is elastic. Its ranks are gathered by the coordinator:
 * each generation has ranks 0..world-1, seed, servers and tensors of its own, and is a job of the same name to servers
 * and `zenpsctl`. The sums of a generation are, bit for bit, those of a job that has always had so many ranks. A
 * trainer is a loop:
 *
 *   zenps_open(&options, &job);
 *   zenps_job_generation(job, &generation);
 *   for (;;) {
 *     ... zenps_rank() and zenps_world() are this generation's: open tensors; zenps_broadcast() the model, the
 *         optimizer's state and the place in the data from generation.source; step = generation.step;
 *     while (step < steps && !zenps_job_changed(job)) {
 *       status = ... compute, zenps_allreduce(), zenps_wait() ...;
 *       if (status != ZENPS_OK) break;
 *       ... apply the sums ...; step++;
 *     }
 *     if (step == steps) break;
 *     if (status != ZENPS_OK && !zenps_status_recoverable(status)) break;
 *     zenps_job_next(&job, step, &generation);
 *   }
 *   zenps_close(job);
 *
 * A step that fails on one rank may have ended well on another, which is one step ahead then: so the state that all go
 * on with is that of the rank that has come furthest, `source`.
 */
#ifndef ZENPS_ELASTIC_H
#define ZENPS_ELASTIC_H

#include <stdbool.h>

#include <zenps/zenps.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zenps_generation {
  size_t struct_size; /* sizeof(zenps_generation_t) */
  uint32_t number;    /* 1 for the first; 0: the job is not elastic */
  int rank, world;    /* of this process, in it */
  int source;         /* the rank whose state the others take: of those that were there before, the one with the most
                         steps, the lowest of several. In the first generation, of all ranks */
  uint64_t step;      /* steps that `source` has completed, as it said */
} zenps_generation_t;

/* Of a job as zenps_open() or zenps_job_next() gave it. */
ZENPS_API zenps_status_t zenps_job_generation(const zenps_job_t *job, zenps_generation_t *generation);

/* Whether the job goes no further, since it has failed, or a rank is lost, has left or moved on; or newcomers wait,
 * and there is room for them; or the job has lost servers, and others are there, which the next generation has. Then
 * zenps_job_next() is to be called, on all ranks: a rank that goes on meanwhile fails in its next step. Costs an atomic
 * load; from any thread. False for NULL. */
ZENPS_API bool zenps_job_changed(const zenps_job_t *job);

/* Whether zenps_job_next() makes sense after this error: a rank or server was lost, has left or did not come
 * (PEER_LOST, SERVER_LOST, CLOSED, MISSING, STALE, TIMEOUT, and CANCELED by another rank), or could not be read from
 * (FABRIC: so ends a step in which this process slept until the others went on without it). */
ZENPS_API bool zenps_status_recoverable(zenps_status_t status);

/*
 * Closes an elastic job as zenps_close() does, with its tensors, groups and requests, and opens the next generation in
 * its place, with the same options. `step` is the number of steps that this process has completed, which its state is
 * of. Returns when the generation is complete: at once when all ranks of the last one have called this and none is
 * missing, or `max_world` are there; else `join_wait_ms` after the first of them did, when at least `min_world` are
 * there. Ranks that do not come by the time the first one's join_timeout_ms are over are left behind: they are
 * newcomers when they come later. Who is left keeps its rank where the world stays the same size (newcomers then fill
 * the holes), else its place in the order; newcomers follow.
 *
 * ZENPS_ERR_MISSING: fewer than `min_world` ranks were there in time. On any failure *job is NULL. ZENPS_ERR_INVALID,
 * and nothing happens: the job is NULL, or not elastic. `generation` may be NULL; else its struct_size must be set.
 */
ZENPS_API zenps_status_t zenps_job_next(zenps_job_t **job, uint64_t step, zenps_generation_t *generation);

#ifdef __cplusplus
}
#endif

#endif
