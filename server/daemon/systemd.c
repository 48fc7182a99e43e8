#include "server/daemon/systemd.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "config.h"

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#else
#define sd_notify(unset, text) ((void)(text))
#define sd_watchdog_enabled(unset, us_p) ((void)(us_p), 0)
#endif

void zps_notify(const char *state) {
  sd_notify(0, state);
}
void zps_notify_reloading(void) {
  char text[80];
  snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(zps_clock_ns() / 1000));
  sd_notify(0, text);
}
void zps_notify_status(const char *text) {
  char status[400];
  snprintf(status, sizeof status, "STATUS=%s", text);
  sd_notify(0, status);
}
uint64_t zps_notify_watchdog_ms(void) {
  uint64_t us = 0;
  return sd_watchdog_enabled(0, &us) > 0 ? us / 1000 : 0;
}

/* ------------------------------------------------------------ the journal */

#define SOCKET "/run/systemd/journal/socket"

enum { ENTRY_MAX = 2200 }; /* a line of the log, and its fields */

struct entry {
  size_t len;
  char text[ENTRY_MAX];
};

/* "NAME=value". A value is one line here. */
static void add(struct entry *entry, const char *name, const char *value) {
  const size_t room = sizeof entry->text - 1 - entry->len; /* for the newline behind it */
  const int n = snprintf(entry->text + entry->len, room, "%s=%s", name, value);
  const size_t end = entry->len + ((size_t)n < room ? (size_t)n : room - 1);
  for (size_t i = entry->len; i < end; i++)
    if (entry->text[i] == '\n') entry->text[i] = ' ';
  entry->len = end;
  entry->text[entry->len++] = '\n';
}

static void add_field(void *ctx, const char *field, const char *value, bool is_number) {
  char name[32] = "ZENPS_";
  (void)is_number;
  for (size_t i = 0, at = strlen(name); field[i] && at < sizeof name - 1; i++, at++)
    name[at] = (char)toupper((unsigned char)field[i]);
  add(ctx, name, value);
}

/* sd_journal_sendv() would wait for a journal that does not read. This is its protocol: "NAME=value" lines in one
 * datagram. Where that fails the line goes to stderr. */
static int put_entry(const struct zps_log_line *line) {
  static const struct sockaddr_un journal = {.sun_family = AF_UNIX, .sun_path = SOCKET};
  struct entry entry = {.len = 0};
  char message[1100]; /* the longest line of the log has 1024 bytes */
  snprintf(message, sizeof message, "%s: %s", line->component, line->text);
  add(&entry, "PRIORITY", (char[]){zps_log_priority(line->level), '\0'});
  add(&entry, "SYSLOG_IDENTIFIER", "zenpsd");
  add_field(&entry, "component", line->component, false);
  zps_log_each_field(&line->fields, add_field, &entry);
  add(&entry, "MESSAGE", message);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const ssize_t n = fd < 0 ? -1
                           : sendto(fd, entry.text, entry.len, MSG_DONTWAIT | MSG_NOSIGNAL,
                                    (const struct sockaddr *)&journal, sizeof journal);
  if (fd >= 0) close(fd);
  return n < 0 ? zps_log_put_stderr(line) : 0;
}

static void send_entry(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  zps_log_deliver(put_entry, line);
}

/* In a container whose stderr is its host's journal there is no journal's socket. */
static zps_log_sink_fn sink_for(enum zps_log_format format) {
  return format == ZPS_LOG_TEXT && zps_log_is_journal() && access(SOCKET, W_OK) == 0 ? send_entry : NULL;
}

void zps_journal_set_format(enum zps_log_format format) {
  zps_log_set_format(format);
  zps_log_set_sink(sink_for(format), NULL);
}
