/* libfabric's TCP provider, offering more than it has: stands between the library and libfabric (--wrap=fi_getinfo,
 * --wrap=fi_fabric), and notes what it was asked for. */
#ifndef ZPS_TESTS_OFFERING_H
#define ZPS_TESTS_OFFERING_H

#include <stdbool.h>

struct offering {
  bool has_device_memory;
  int setopt_result; /* of FI_OPT_CUDA_API_PERMITTED */
  /* What was asked. */
  unsigned n_device_asked; /* looks at the fabrics, with device memory */
  unsigned n_device_opened, n_opened;
  unsigned n_forbidden; /* CUDA calls, before the endpoint was enabled */
};
extern struct offering offering;

#endif
