/* Providers that pin memory fail late and obscurely, or fall back silently, where the limit on locked memory is small.
 * The daemon checks at start instead. */
#ifndef ZPS_SERVER_DAEMON_MEMLOCK_H
#define ZPS_SERVER_DAEMON_MEMLOCK_H

#include <stdint.h>

#include "common/base/err.h"

/* Pure. `limit_bytes`: RLIMIT_MEMLOCK, UINT64_MAX for none; `may_lock`: CAP_IPC_LOCK lifts it. */
zps_err_t zps_memlock_judge(const char *provider, uint64_t limit_bytes, bool may_lock, uint64_t needed_bytes,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* zps_memlock_judge() with this process's limits. */
zps_err_t zps_memlock_check(const char *provider, uint64_t needed_bytes, struct zps_error *error) ZPS_MUSTCHECK;

#endif
