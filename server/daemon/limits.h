/* The options and limits in effect: their lines in the log, at the start and after a reload (level info). */
#ifndef ZPS_SERVER_DAEMON_LIMITS_H
#define ZPS_SERVER_DAEMON_LIMITS_H

#include <stdint.h>

#include "common/base/err.h"
#include "server/daemon/options.h"

/* The configuration file, and the profile: `was_read` as struct zps_config_rest has it. */
void zps_in_effect_log_file(const struct zps_options *options, bool was_read);
/* With TLS. `ends_s`: of the calendar. */
void zps_in_effect_log_certificate(const struct zps_options *options, long long ends_s);
/* The limits of the process's roles. `conns`: the most connections of a coordinator. */
void zps_in_effect_log_limits(const struct zps_options *options, unsigned conns);

#endif
