/* The options and limits in effect: their lines in the log, at the start and after a reload (level info), and the check
 * of the limit on locked memory. */
#ifndef ZPS_SERVER_DAEMON_LIMITS_H
#define ZPS_SERVER_DAEMON_LIMITS_H

#include <stdint.h>

#include "common/base/err.h"
#include "server/daemon/options.h"

/* The configuration file: `was_read` as struct zps_config_rest has it. */
void zps_in_effect_log_file(const struct zps_options *options, bool was_read);
/* With TLS. `ends_s`: of the calendar. */
void zps_in_effect_log_certificate(const struct zps_options *options, long long ends_s);
/* The limits of the process's roles. `conns`: the most connections of a coordinator. */
void zps_in_effect_log_limits(const struct zps_options *options, unsigned conns);

/* Providers that pin memory fail late and obscurely, or fall back silently, where the limit on locked memory is small.
 * The daemon checks at its start instead.
 *
 * Pure. `limit_bytes`: RLIMIT_MEMLOCK, UINT64_MAX for none; `may_lock`: CAP_IPC_LOCK lifts it. */
zps_err_t zps_memlock_judge(const char *provider, uint64_t limit_bytes, bool may_lock, uint64_t needed_bytes,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* Judges this process by its own limits. */
zps_err_t zps_memlock_check(const char *provider, uint64_t needed_bytes, struct zps_error *error) ZPS_MUSTCHECK;

#endif
