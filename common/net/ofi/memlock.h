/* Locked memory. Providers that pin registered memory fail late and obscurely where the limit on it is small, or are
 * not listed at all. So the limit is checked when a fabric opens. */
#ifndef ZPS_NET_OFI_MEMLOCK_H
#define ZPS_NET_OFI_MEMLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Pure. `limit_bytes`: RLIMIT_MEMLOCK, UINT64_MAX for none; `may_lock`: CAP_IPC_LOCK lifts it. */
zps_err_t zps_memlock_judge(const char *provider, uint64_t limit_bytes, bool may_lock, uint64_t needed_bytes,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* Judges this process by its own limit. */
zps_err_t zps_memlock_check(const char *provider, uint64_t needed_bytes, struct zps_error *error) ZPS_MUSTCHECK;
/* The limit and its remedy, to add to an error of a provider that found no memory; "" where the provider does not pin.
 * Returns `text`. */
const char *zps_memlock_advice(const char *provider, char *text, size_t size);

#endif
