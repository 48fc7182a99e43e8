/* Why libfabric offers less than a host has: what the environment tells it, and a small /dev/shm. */
#ifndef ZPS_NET_OFI_HIDDEN_H
#define ZPS_NET_OFI_HIDDEN_H

#include <stddef.h>

/* Writes sentences to add to "there is no such fabric", each after a semicolon; "" if there is nothing to say.
 * `provider` is the one that was asked for. */
void zps_ofi_hidden(const char *provider, char *const *environment, char *text, size_t size);

#endif
