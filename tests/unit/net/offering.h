/* libfabric's TCP provider, offering more than it has: stands between the library and libfabric (--wrap=fi_getinfo,
 * --wrap=fi_fabric), and notes what it was asked for. */
#ifndef ZPS_TESTS_OFFERING_H
#define ZPS_TESTS_OFFERING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct offering {
  bool has_device_memory;
  int setopt_result;        /* of FI_OPT_CUDA_API_PERMITTED */
  size_t key_len;           /* authorization keys are taken, of this length; 0: none is */
  bool ignores_key;         /* offers as if there were none */
  size_t queue, queue_most; /* entries of its queues, and the most that may be asked for; 0: the provider's own */
  unsigned n_cards;         /* of TCP besides: "card0" and so on, each listed twice */
  size_t queue_opens;       /* an endpoint with longer queues does not open; 0: it does */
  /* What was asked. */
  unsigned n_device_asked; /* looks at the fabrics, with device memory */
  unsigned n_device_opened, n_opened;
  unsigned n_forbidden; /* CUDA calls, before the endpoint was enabled */
  struct {
    size_t len;
    uint8_t bytes[64];
  } domain_key, ep_key; /* opened with */
  unsigned n_queue_asked;
  struct {
    unsigned n;
    uint64_t flags;
    int device, dmabuf_fd; /* -1: by its address */
    uint64_t offset;
    size_t len;
    const void *base;
  } registered; /* of device memory */
};
extern struct offering offering;

#endif
