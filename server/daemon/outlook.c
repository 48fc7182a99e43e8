#include "server/daemon/outlook.h"

#define ZPS_LOG_COMPONENT "zenpsd"
#include "common/base/config.h"
#include "common/base/log.h"

enum { DAY_S = 24 * 3600 };

/* Whether a grade is to be said: it has become worse, or was said a day ago. */
static bool is_due(struct zps_outlook_warning *said, unsigned grade, long long now_s) {
  const bool is_worse = grade > said->grade, is_old = now_s - said->at_s >= DAY_S;
  said->grade = grade;
  if (grade == 0 || (!is_worse && !is_old)) return false;
  said->at_s = now_s;
  return true;
}

static void look_at_certificate(struct zps_outlook *outlook, const struct zps_outlook_facts *facts) {
  const long long left_s = facts->certificate_ends_s - facts->now_s;
  const unsigned grade = !facts->certificate_ends_s ? 0
                         : left_s <= 0              ? 4
                         : left_s <= DAY_S          ? 3
                         : left_s <= 7 * DAY_S      ? 2
                         : left_s <= 30 * DAY_S     ? 1
                                                    : 0;
  if (!is_due(&outlook->certificate, grade, facts->now_s)) return;
  if (grade == 4)
    zps_log_warn("certificate %s has ended: new connections are refused. Put a new one in place (zenpsctl certs init)",
                 facts->certificate);
  else
    zps_log_warn(
        "certificate %s ends in %.1f days: then new connections are refused. Put a new one in place (zenpsctl certs "
        "init), and reload",
        facts->certificate, (double)left_s / DAY_S);
}

static void look_at_disk(struct zps_outlook *outlook, const struct zps_outlook_facts *facts) {
  const bool is_low = facts->disk_bytes > 0 && facts->disk_free_bytes < facts->disk_bytes / 20;
  if (is_due(&outlook->disk, is_low, facts->now_s))
    zps_log_warn("state directory %s: %llu MiB are free, %.1f%%: a full disk ends the coordinator. Free space there",
                 facts->state_dir, (unsigned long long)(facts->disk_free_bytes >> 20),
                 (double)facts->disk_free_bytes / (double)facts->disk_bytes * 100);
}

static void look_at_memory(struct zps_outlook *outlook, const struct zps_outlook_facts *facts) {
  const bool is_high = facts->memory_limit_bytes > 0 && facts->memory_bytes > facts->memory_limit_bytes / 10 * 9;
  if (is_due(&outlook->memory, is_high, facts->now_s))
    zps_log_warn(
        "memory: %llu of %llu MiB (%s) are in use: rounds wait for memory, or fail. Raise the limit, add a server, or "
        "limit jobs (job.max_memory)",
        (unsigned long long)(facts->memory_bytes >> 20), (unsigned long long)(facts->memory_limit_bytes >> 20),
        zps_config_label("server.memory_limit"));
}

void zps_outlook_look(struct zps_outlook *outlook, const struct zps_outlook_facts *facts) {
  look_at_certificate(outlook, facts);
  look_at_disk(outlook, facts);
  look_at_memory(outlook, facts);
}
