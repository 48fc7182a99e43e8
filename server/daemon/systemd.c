#include "server/daemon/systemd.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

/* ------------------------------------------------------------ the journal */

#define SOCKET "/run/systemd/journal/socket"

enum { ENTRY_MAX = 1400 }; /* a line of the log, and what is in front */

/* sd_journal_sendv() would wait for a journal that does not read. This is its protocol: "NAME=value" lines in one
 * datagram. Where that fails the line goes to stderr. */
static int put_entry(enum zps_log_level level, const char *component, const char *text) {
  static const struct sockaddr_un journal = {.sun_family = AF_UNIX, .sun_path = SOCKET};
  char entry[ENTRY_MAX];
  const int len =
      snprintf(entry, sizeof entry,
               "PRIORITY=%c\nZENPS_COMPONENT=%s\nSYSLOG_IDENTIFIER=zenpsd\nMESSAGE=%s: ", zps_log_priority(level),
               component, component);
  size_t end = (size_t)len;
  /* A value is one line here. */
  for (const char *from = text; *from && end < sizeof entry - 1; from++) entry[end++] = *from == '\n' ? ' ' : *from;
  entry[end++] = '\n';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const ssize_t n =
      fd < 0 ? -1
             : sendto(fd, entry, end, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&journal, sizeof journal);
  if (fd >= 0) close(fd);
  return n < 0 ? zps_log_put_stderr(level, component, text) : 0;
}

static void send_entry(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  (void)ctx;
  zps_log_deliver(put_entry, level, component, text);
}

/* In a container whose stderr is its host's journal there is no journal's socket. */
static zps_log_sink_fn sink_for(enum zps_log_format format) {
  return format == ZPS_LOG_TEXT && zps_log_is_journal() && access(SOCKET, W_OK) == 0 ? send_entry : NULL;
}

void zps_journal_set_format(enum zps_log_format format) {
  zps_log_set_format(format);
  zps_log_set_sink(sink_for(format), NULL);
}
