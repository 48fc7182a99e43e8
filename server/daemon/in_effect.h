/* What the daemon says of its options in the log, at the start and after a reload. Both log at level info. */
#ifndef ZPS_SERVER_DAEMON_IN_EFFECT_H
#define ZPS_SERVER_DAEMON_IN_EFFECT_H

#include "server/daemon/options.h"

/* The configuration file: `was_read` as struct zps_config_rest has it. */
void zps_in_effect_log_file(const struct zps_options *options, bool was_read);
/* The limits of the process's roles. `conns`: the most connections of a coordinator. */
void zps_in_effect_log_limits(const struct zps_options *options, unsigned conns);

#endif
