/*
 * A sparsifier whose gradients are in device memory: residual, velocity and selection are there, too, and only numbers
 * come to the host. It selects what the sparsifier of the same options selects in host memory, bit for bit.
 */
#ifndef ZPS_WORKER_SPARSIFY_ON_DEVICE_H
#define ZPS_WORKER_SPARSIFY_ON_DEVICE_H

#include "worker/sparsify/sparsifier.h"

/* Opens the device of the options and allocates; sets sparsifier->there, and the arrays of feedback and picks. */
zps_err_t zps_on_device_create(struct zenps_sparsifier *sparsifier, struct zps_error *error) ZPS_MUSTCHECK;
void zps_on_device_destroy(struct zenps_sparsifier *sparsifier);
/* Room for `capacity` picks, more than there is. */
zps_err_t zps_on_device_reserve(struct zenps_sparsifier *sparsifier, uint64_t capacity,
                                struct zps_error *error) ZPS_MUSTCHECK;

/* Copies between an array of the sparsifier's, on the device, and the host. Waits. */
zps_err_t zps_on_device_copy(struct zenps_sparsifier *sparsifier, void *to, const void *from, size_t len_bytes,
                             struct zps_error *error) ZPS_MUSTCHECK;

/* Makes sparsifier->sample, of what selecting is going to choose from. Waits. */
zps_err_t zps_on_device_sample(struct zenps_sparsifier *sparsifier, const void *gradient, void *stream,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* Adds the gradient and fills the picks, in the order of `stream`. Waits for it. */
zps_err_t zps_on_device_run(struct zenps_sparsifier *sparsifier, const void *gradient, void *stream,
                            struct zps_error *error) ZPS_MUSTCHECK;

/* Takes all picks out of the residual. */
zps_err_t zps_on_device_clear_picks(struct zenps_sparsifier *sparsifier, struct zps_error *error) ZPS_MUSTCHECK;
/* Takes entries out that the host lists: the list is begun, with room for `n_most`, added to, and carried out. */
zps_err_t zps_on_device_list_begin(struct zenps_sparsifier *sparsifier, uint64_t n_most,
                                   struct zps_error *error) ZPS_MUSTCHECK;
void zps_on_device_list_add(struct zenps_sparsifier *sparsifier, uint64_t id);
zps_err_t zps_on_device_list_clear(struct zenps_sparsifier *sparsifier, struct zps_error *error) ZPS_MUSTCHECK;
/* Copies row numbers to the host, where they stay valid until the next call for the same use. Waits. */
enum zps_on_device_ids { ZPS_IDS_PICKED, ZPS_IDS_OF_RESULT };
zps_err_t zps_on_device_fetch(struct zenps_sparsifier *sparsifier, enum zps_on_device_ids use,
                              const int64_t *ids_on_device, uint64_t n, const int64_t **ids_p,
                              struct zps_error *error) ZPS_MUSTCHECK;

#endif
