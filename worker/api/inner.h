/* The rounds over servers of a tensor whose scheme nests another one: carried out as requests of an inner tensor. */
#ifndef ZPS_WORKER_API_INNER_H
#define ZPS_WORKER_API_INNER_H

#include "worker/peer/inner.h"

struct zenps_tensor;

struct zps_inner {
  struct zps_inner_service service; /* first: it is cast */
  struct zenps_tensor *tensor;      /* borrowed */
};

/* For free(). */
zps_err_t zps_inner_create(struct zenps_tensor *tensor, struct zps_inner **inner_p) ZPS_MUSTCHECK;

#endif
