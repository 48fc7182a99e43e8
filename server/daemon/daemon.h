/* The daemon: its parts, built from options, on one loop, with its signals. */
#ifndef ZPS_SERVER_DAEMON_DAEMON_H
#define ZPS_SERVER_DAEMON_DAEMON_H

#include "server/daemon/options.h"

/* Runs until asked to end by signals. `argc` and `argv` are read again on reload. `options` may be changed by reloads,
 * and stays the caller's. `file_read`: `options` come from a configuration file, too, for the log. */
zps_err_t zps_daemon_run(struct zps_options *options, int argc, char **argv, bool file_read,
                         struct zps_error *error) ZPS_MUSTCHECK;

#endif
