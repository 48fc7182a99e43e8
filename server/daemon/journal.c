#include "server/daemon/journal.h"

#include "config.h"

#ifdef HAVE_SYSTEMD
#define SD_JOURNAL_SUPPRESS_LOCATION /* it would be this file's */
#include <stdio.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#define SOCKET "/run/systemd/journal/socket"

/* As long as a line of the log, and what is in front. */
struct field {
  char text[1200];
};

static struct iovec field_set(struct field *field, const char *name, const char *component, const char *text) {
  const int len = component ? snprintf(field->text, sizeof field->text, "%s=%s: %s", name, component, text)
                            : snprintf(field->text, sizeof field->text, "%s=%s", name, text);
  const size_t most = sizeof field->text - 1;
  return (struct iovec){.iov_base = field->text, .iov_len = (size_t)len < most ? (size_t)len : most};
}

static void send_entry(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  const char priority[] = {zps_log_priority(level), '\0'};
  struct field fields[4];
  const struct iovec entry[] = {field_set(&fields[0], "PRIORITY", NULL, priority),
                                field_set(&fields[1], "MESSAGE", component, text),
                                field_set(&fields[2], "ZENPS_COMPONENT", NULL, component),
                                field_set(&fields[3], "SYSLOG_IDENTIFIER", NULL, "zenpsd")};
  if (sd_journal_sendv(entry, sizeof entry / sizeof entry[0]) != 0) zps_log_to_stderr(ctx, level, component, text);
}

/* sd_journal_sendv() succeeds where there is no journal's socket, as in a container whose stderr is its host's journal.
 */
static zps_log_sink_fn sink_for(enum zps_log_format format) {
  return format == ZPS_LOG_TEXT && zps_log_is_journal() && access(SOCKET, W_OK) == 0 ? send_entry : NULL;
}

#else

static zps_log_sink_fn sink_for(enum zps_log_format format) {
  (void)format;
  return NULL;
}

#endif

void zps_journal_set_format(enum zps_log_format format) {
  zps_log_set_format(format);
  zps_log_set_sink(sink_for(format), NULL);
}
