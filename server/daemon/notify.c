#include "server/daemon/notify.h"

#include "common/base/clock.h"
#include "config.h"

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>

void zps_notify_ready(void) {
  sd_notify(0, "READY=1");
}
void zps_notify_reloading(void) {
  sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(zps_clock_ns() / 1000));
}
void zps_notify_stopping(void) {
  sd_notify(0, "STOPPING=1");
}
void zps_notify_status(const char *text) {
  sd_notifyf(0, "STATUS=%s", text);
}
void zps_notify_alive(void) {
  sd_notify(0, "WATCHDOG=1");
}
uint64_t zps_notify_watchdog_ms(void) {
  uint64_t us = 0;
  return sd_watchdog_enabled(0, &us) > 0 ? us / 1000 : 0;
}

#else

void zps_notify_ready(void) {}
void zps_notify_reloading(void) {}
void zps_notify_stopping(void) {}
void zps_notify_status(const char *text) {
  (void)text;
}
void zps_notify_alive(void) {}
uint64_t zps_notify_watchdog_ms(void) {
  return 0;
}

#endif
