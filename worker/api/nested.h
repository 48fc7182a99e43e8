/* The rounds over servers of a tensor whose scheme nests another one: carried out as requests of an inner tensor. */
#ifndef ZPS_WORKER_API_NESTED_H
#define ZPS_WORKER_API_NESTED_H

#include "worker/peer/nested.h"

struct zenps_tensor;

struct zps_nested {
  struct zps_nested_service service; /* first: it is cast */
  struct zenps_tensor *tensor;       /* borrowed */
};

/* For free(). */
zps_err_t zps_nested_create(struct zenps_tensor *tensor, struct zps_nested **inner_p) ZPS_MUSTCHECK;

#endif
