/*
 * The daemon's log where stderr is systemd's journal. In text a line is an entry with fields of its own: PRIORITY,
 * MESSAGE (as it is on stderr, without time and level), ZENPS_COMPONENT, SYSLOG_IDENTIFIER; `journalctl
 * ZENPS_COMPONENT=agent` finds it. In JSON it stays a line on stderr, for collectors that read MESSAGE; log.h gives it
 * its priority.
 */
#ifndef ZPS_SERVER_DAEMON_JOURNAL_H
#define ZPS_SERVER_DAEMON_JOURNAL_H

#include "common/base/log.h"

/* Sets the log's format, and where it goes. Again after a reload. */
void zps_journal_set_format(enum zps_log_format format);

#endif
