/* What the process tells systemd. */
#ifndef ZPS_SERVER_DAEMON_SYSTEMD_H
#define ZPS_SERVER_DAEMON_SYSTEMD_H

#include <stdint.h>

#include "common/base/log.h"

/* Readiness and watchdog. Without libsystemd, and where systemd does not run the process, these do nothing. */
void zps_notify(const char *state); /* READY=1, STOPPING=1, or WATCHDOG=1 */
void zps_notify_reloading(void);    /* followed by READY=1 */
void zps_notify_status(const char *text);
/* Milliseconds within which WATCHDOG=1 is expected again and again; 0: it is not. */
uint64_t zps_notify_watchdog_ms(void);

/*
 * The log where stderr is the journal. In text a line is an entry with fields of its own: PRIORITY, ZENPS_COMPONENT,
 * SYSLOG_IDENTIFIER, and MESSAGE, the line without time and level. `journalctl ZENPS_COMPONENT=agent` finds it. In JSON
 * a line stays on stderr, for collectors that read MESSAGE; log.h gives it its priority.
 */

/* Sets the log's format, and where it goes. Again after a reload. */
void zps_journal_set_format(enum zps_log_format format);

#endif
