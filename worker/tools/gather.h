/* A small collective on top of the public API: every rank's vector of doubles, on every rank. */
#ifndef ZPS_TOOLS_GATHER_H
#define ZPS_TOOLS_GATHER_H

#include <zenps/zenps.h>

/* Collective. `own` has `width` values; *all_p gets world * width of them, by rank, for the caller to free(). The
 * tensor that carries them is called `name`; `step` must grow from call to call with the same name. Zeros and the sign
 * of zero: -0.0 arrives as +0.0. */
zenps_status_t zps_gather(zenps_job_t *job, const char *name, uint64_t step, uint32_t width, const double *own,
                          double **all_p);

#endif
