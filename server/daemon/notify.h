/* Messages to systemd; without libsystemd, or when systemd does not run the process, nothing happens. */
#ifndef ZPS_SERVER_DAEMON_NOTIFY_H
#define ZPS_SERVER_DAEMON_NOTIFY_H

#include <stdint.h>

void zps_notify_ready(void);
void zps_notify_reloading(void); /* followed by zps_notify_ready() */
void zps_notify_stopping(void);
void zps_notify_status(const char *text);
void zps_notify_alive(void);
/* Milliseconds within which zps_notify_alive() is expected again and again; 0: it is not. */
uint64_t zps_notify_watchdog_ms(void);

#endif
